"""Rotary position embeddings: the angle of pair i at position p is p / theta^(2i / dims) (Su et al., 2021)."""

import math
from typing import Any

import torch

from harness.errors import ConfigError
from harness.specs.model import ModelSpec


def rope_table(
    spec: ModelSpec, head_dim: int, num_positions: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), float32 [num_positions, r], where 2 r of a head's dimensions turn (`rotary_frac`); pair i is made of
    dimensions i and i + r.

    Raises ConfigError for a scaling that is not implemented: wrong angles give wrong tokens without a word.
    """
    rotary = int(head_dim * spec.rotary_frac)
    exponent = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    inverse = 1.0 / (spec.rope_theta**exponent)
    if spec.rope_scaling is not None:
        inverse = _scaled(inverse, spec.rope_scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    return angles.cos().contiguous().to(device), angles.sin().contiguous().to(device)


def _scaled(inverse: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        return inverse / _number(scaling, "factor")
    if kind == "llama3":
        return _llama3(inverse, scaling)
    raise ConfigError(f"rope_scaling of type {kind!r} is not implemented", "known: linear, llama3")


def _number(scaling: dict[str, Any], key: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"rope_scaling: {key} is {value!r}", "it must be a finite number above 0")
    return float(value)


def _llama3(inverse: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1: wavelengths beyond the trained context are stretched by `factor`, short ones stay, a ramp between."""
    factor, low, high = (_number(scaling, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = _number(scaling, "original_max_position_embeddings")
    wavelength = 2 * math.pi / inverse
    ramp = ((trained / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return inverse * (ramp + (1 - ramp) / factor)
