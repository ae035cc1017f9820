"""Tensors for kernels: random ones, and outputs that show what was not written and what was written beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("bfloat16", "float16", "float32")
# Of a stored value, relative to it: half of the last place, so that bf16 or fp16 that is cut off shows; of fp32, which
# is summed in an order of its own, more.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-21}
SCORE_ERROR = 2.0**-20
"""What attention may err by beside its rounding: scores are sums of fp32 products in an order that is the interpreter's
BLAS's, off by some 2^-24 of their terms, and so, relatively, are weights; values are of size 1."""
GUARD = 64


def normals(shape: tuple[int, ...], dtype: str, device: str, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Standard normal values, other ones for another shape or seed."""
    import torch

    values = scale * np.random.default_rng((seed, *shape)).standard_normal(shape)
    return torch.tensor(values, dtype=getattr(torch, dtype), device=device)


def strided(shape: tuple[int, ...], dtype: str, device: str, seed: int = 0, gap: int = 3) -> Tensor:
    """As normals, but rows of the last dimension are `gap` elements of NaN apart."""
    import torch

    values = normals(shape, dtype, device, seed)
    room = torch.full((*shape[:-1], shape[-1] + gap), float("nan"), dtype=values.dtype, device=device)
    room[..., : shape[-1]] = values
    return room[..., : shape[-1]]


def exact(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


class Guarded:
    """A tensor full of NaN (or of `before`) between two guards of NaN; of integers, of -1."""

    def __init__(self, shape: tuple[int, ...], dtype: str, device: str, before: Tensor | None = None) -> None:
        import torch

        kind = getattr(torch, dtype)
        self._all = torch.full(
            (math.prod(shape) + 2 * GUARD,), float("nan") if kind.is_floating_point else -1, dtype=kind, device=device
        )
        self.tensor = self._all[GUARD:-GUARD].view(shape)
        if before is not None:
            self.tensor.copy_(before)

    def result(self) -> np.ndarray:
        """The values in float64, after a look at the guards."""
        guards = exact(self._all)[[*range(GUARD), *range(-GUARD, 0)]]
        assert (np.isnan(guards) | (guards == -1)).all(), "written outside the output"
        return exact(self.tensor)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: np.ndarray | float) -> None:
    """Says by how much and where: the worst error over its tolerance, the first coordinate that is wrong."""
    assert actual.shape == expected.shape
    error = np.abs(actual - expected)
    wrong = ~(error <= tolerance)
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} values are wrong, the worst by {np.nanmax(error / tolerance):.3g} times"
            f" its tolerance; first at {first}: {actual[first]} instead of {expected[first]}"
        )
