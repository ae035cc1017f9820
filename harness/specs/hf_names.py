"""A config.json's fields under the names that this reader asks for."""

from collections.abc import Mapping
from typing import Any

_ALSO_CALLED: dict[str, dict[str, tuple[str, ...]]] = {
    "nemotron_h": {
        "layers_block_type": ("layer_types", "hybrid_override_pattern"),
        "rms_norm_eps": ("layer_norm_epsilon", "norm_eps"),
        "head_dim": ("attention_head_dim",),
        "n_groups": ("mamba_n_groups",),
        "conv_kernel": ("mamba_d_conv",),
        "use_conv_bias": ("mamba_conv_bias",),
    },
}
"""By family: our name, and those that are looked for where it is absent."""


def with_usual_names(text: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Nemotron-H may say how many layers there are by listing them alone."""
    named = dict(text)
    for name, others in _ALSO_CALLED.get(family, {}).items():
        found = [text[key] for key in (name, *others) if text.get(key) is not None]
        named |= {name: found[0]} if found else {}
    blocks = named.get("layers_block_type")
    if family == "nemotron_h" and named.get("num_hidden_layers") is None and isinstance(blocks, str | list):
        named["num_hidden_layers"] = len(blocks)
    return named
