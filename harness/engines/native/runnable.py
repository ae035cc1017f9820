"""Which models the native engine runs: all others are refused before anything is loaded or measured."""

from __future__ import annotations

import torch

from harness.engines.native.rope import rope_table
from harness.errors import ConfigError
from harness.specs.layer import LayerKind
from harness.specs.model import ModelSpec
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.mlp import GatedMlp, Moe, PlainMlp


def check_runnable(spec: ModelSpec, device: torch.device) -> None:
    """ConfigError with what is missing: a part of a layer, a rotary scaling, a type of weights."""
    missing = next((what for kind in spec.kinds for what in _missing(kind, device)), None)
    if missing is None and spec.quantization is not None:
        missing = f"weights in {spec.quantization}"
    if missing is not None:
        raise ConfigError(
            f"the native engine does not run this {spec.model_type}: it has no {missing}",
            "take another model; `harness plan` knows this one's bytes",
        )
    for kind in spec.kinds:
        if isinstance(kind.mixer, Attention):
            rope_table(spec, kind.mixer.head_dim, 1, torch.device("cpu"))


def _missing(kind: LayerKind, device: torch.device) -> list[str]:
    """What a layer of this kind asks for and the engine lacks."""
    mixer, mlp = kind.mixer, kind.mlp
    lacks = {
        "norms around its parts": len(kind.norms) != 2,
        f"mixer of the kind {mixer.kind}": not isinstance(mixer, Attention | GatedDelta),
        f"MLP of the kind {mlp.kind}": not isinstance(mlp, GatedMlp | Moe),
    }
    if isinstance(mixer, Attention):
        lacks |= {"attention windows": mixer.window is not None, "attention sinks": mixer.sinks}
    if isinstance(mixer, GatedDelta):
        lacks["fused input projections of the gated delta rule"] = mixer.fused_inputs
        lacks[f"recurrent state in {mixer.state_dtype}"] = mixer.state_dtype != "F32"
    part = mlp.expert if isinstance(mlp, Moe) else mlp
    if isinstance(part, GatedMlp | PlainMlp):
        lacks[f"activation {part.activation}"] = part.activation != "silu"
    if isinstance(mlp, Moe):
        lacks["stacked experts"] = mlp.stacked
        lacks["experts on a narrower input"] = mlp.latent_size is not None
        lacks["shared experts"] = mlp.shared is not None
        lacks["corrected router"] = mlp.router_correction
        lacks["experts on a GPU"] = device.type != "cpu"  # the host looks at the router's choice: no graph holds that
    return [what for what, is_lacking in lacks.items() if is_lacking]
