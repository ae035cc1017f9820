"""What kernels/decode_attention computes, in float64."""

import numpy as np


def decode_attention(q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, context: int) -> np.ndarray:
    """One query over the first `context` places: softmax(q k^T / sqrt(head_dim)) v.

    q [num_heads, head_dim], caches [num_kv_heads, max_context, head_dim]; query heads h * group to
    (h + 1) * group - 1 share key head h. Returns [num_heads, head_dim].
    """
    num_heads, head_dim = q.shape
    queries = q.astype(np.float64).reshape(len(k_cache), -1, head_dim)
    keys, values = (cache[:, :context].astype(np.float64) for cache in (k_cache, v_cache))
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(head_dim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ values).reshape(num_heads, head_dim)
