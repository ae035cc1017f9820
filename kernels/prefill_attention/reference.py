"""What kernels/prefill_attention computes, in float64."""

import numpy as np


def prefill_attention(q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, context: int) -> np.ndarray:
    """Causal attention of the last m of `context` places over all of them: softmax(q k^T / sqrt(head_dim)) v.

    q [m, num_heads, head_dim], caches [num_kv_heads, max_context, head_dim]; query heads h * group to
    (h + 1) * group - 1 share key head h. Returns [m, num_heads, head_dim].
    """
    m, num_heads, head_dim = q.shape
    queries = q.astype(np.float64).transpose(1, 0, 2).reshape(len(k_cache), -1, m, head_dim)
    keys, values = (cache[:, None, :context].astype(np.float64) for cache in (k_cache, v_cache))
    scores = queries @ keys.swapaxes(-1, -2) / np.sqrt(head_dim)
    later = np.arange(context) > np.arange(context - m, context)[:, None]
    weights = np.exp(np.where(later, -np.inf, scores - scores.max(axis=-1, keepdims=True)))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ values).reshape(num_heads, m, head_dim).transpose(1, 0, 2)
