"""What kernels/gemv computes, in float64."""

import numpy as np


def gemv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """x [m, k] times weight [n, k] transposed, plus bias [n]: [m, n]."""
    product = x.astype(np.float64) @ weight.astype(np.float64).T
    return product if bias is None else product + bias.astype(np.float64)
