"""What kernels/elementwise computes, in float64 and without the storage type's roundings in the middle."""

import numpy as np


def rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019)."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Elements i and i + head_dim / 2 of x [m, heads, head_dim] turn by an angle (Su et al., 2021).

    cosine and sine are [m, head_dim / 2], the rows of x's positions.
    """
    low, high = np.split(x, 2, axis=-1)
    c, s = cosine[:, None], sine[:, None]
    return np.concatenate((low * c - high * s, high * c + low * s), axis=-1)


def silu_mul(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gate / (1 + exp(-gate)) * up (Shazeer, 2020)."""
    return gate / (1 + np.exp(-gate)) * up
