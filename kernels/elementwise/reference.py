"""What kernels/elementwise computes, in float64 and without the storage type's roundings in the middle."""

import numpy as np


def rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019)."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Elements i and i + r of x [m, heads, head_dim] turn by an angle (Su et al., 2021), those from 2 r on stay.

    cosine and sine are [m, r], the rows of x's positions.
    """
    half = cosine.shape[-1]
    low, high, rest = np.split(x, [half, 2 * half], axis=-1)
    c, s = cosine[:, None], sine[:, None]
    return np.concatenate((low * c - high * s, high * c + low * s, rest), axis=-1)


def sigmoid_mul(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-gate))"""
    return x / (1 + np.exp(-gate))


def silu_mul(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gate / (1 + exp(-gate)) * up (Shazeer, 2020)."""
    return gate / (1 + np.exp(-gate)) * up
