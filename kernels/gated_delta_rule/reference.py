"""What kernels/gated_delta_rule computes, token by token, in float64 (Yang et al., 2024, "Gated Delta Networks")."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

L2_EPS = 1e-6
Rounded = Callable[[np.ndarray], np.ndarray]


def exactly(x: np.ndarray) -> np.ndarray:
    return x


class Weights(NamedTuple):
    """Of one layer."""

    conv: np.ndarray  # [channels, taps]
    a_log: np.ndarray  # [value heads]
    dt_bias: np.ndarray  # [value heads]
    norm: np.ndarray | None  # [value_dim]; None: out is what the norm would take
    eps: float


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def convolved(history: np.ndarray, weight: np.ndarray, rounded: Rounded = exactly) -> np.ndarray:
    """silu of the causal convolution of each channel: history [taps, channels], the newest last."""
    sums = rounded((history * weight.T).sum(0))
    return rounded(sums * sigmoid(sums))


def unit(x: np.ndarray) -> np.ndarray:
    """x / |x| over the last dimension."""
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + L2_EPS)


def delta_rule(state: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: float, beta: float):
    """(new state [key_dim, value_dim], output [value_dim]) of one head: decay, correct what k recalls, ask with q."""
    decayed = decay * state
    corrected = decayed + np.outer(k, beta * (v - decayed.T @ k))
    return corrected, corrected.T @ q


def gated_norm(o: np.ndarray, gate: np.ndarray, weights: Weights, rounded: Rounded = exactly) -> np.ndarray:
    """Of one head's output."""
    scaled = rounded(o / np.sqrt((o**2).mean() + weights.eps))
    return rounded(rounded(scaled * weights.norm) * gate * sigmoid(gate))


def gated_delta(qkv, z, b, a, weights: Weights, conv_state, state, num_key_heads: int, rounded: Rounded = exactly):
    """(out [m, value heads, value_dim], conv_state, state) after m tokens.

    qkv [m, channels], z [m, value heads x value_dim], or None without a norm, b and a [m, value heads];
    conv_state [taps - 1, channels], the oldest first; state [value heads, key_dim, value_dim]. rounded: to the storage
    type, where transformers' Qwen3.5 rounds.
    """
    (value_heads, key_dim, value_dim), state = state.shape, state.copy()
    out = np.empty((len(qkv), value_heads, value_dim))
    for t in range(len(qkv)):
        history = np.concatenate((conv_state, qkv[t : t + 1]))
        conv_state = history[1:]
        q, k, v = np.split(convolved(history, weights.conv, rounded), np.cumsum([num_key_heads * key_dim] * 2))
        q, k = (unit(part.reshape(num_key_heads, key_dim)) for part in (q, k))
        v = v.reshape(value_heads, value_dim)
        decay = np.exp(-np.exp(weights.a_log) * np.log1p(np.exp(a[t] + weights.dt_bias)))
        beta = rounded(sigmoid(b[t]))
        for head in range(value_heads):
            key_head = head * num_key_heads // value_heads
            state[head], o = delta_rule(
                state[head], q[key_head] * key_dim**-0.5, k[key_head], v[head], decay[head], beta[head]
            )
            out[t, head] = o = rounded(o)
            if weights.norm is not None:
                out[t, head] = gated_norm(o, z[t].reshape(value_heads, -1)[head], weights, rounded)
    return out, conv_state, state
