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

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "sliding_window": 4096,
    },
}  # fmt: skip
"""Of fields that the family's own configs leave out, Gemma 3's wrappers most of them: as transformers documents them
(Gemma3TextConfig)."""


def with_usual_names(text: Mapping[str, Any], family: str) -> dict[str, Any]:
    """The fields of a config's language model, those that are left out with the family's default.

    Nemotron-H may say how many layers there are by listing them alone.
    """
    named = {**_DEFAULTS.get(family, {}), **text}
    for name, others in _ALSO_CALLED.get(family, {}).items():
        found = [text[key] for key in (name, *others) if text.get(key) is not None]
        named |= {name: found[0]} if found else {}
    blocks = named.get("layers_block_type")
    if family == "nemotron_h" and named.get("num_hidden_layers") is None and isinstance(blocks, str | list):
        named["num_hidden_layers"] = len(blocks)
    return named
