"""A stand-in for flash-attn 2.8.3: its signature, what it demands of its arguments, and the same result by float64.

Demands are those of flash_attn_interface.py and of the extension's C++: types, lengths as int32 on the device, the last
dimension contiguous, heads that divide. causal is aligned to the bottom right.
"""

import torch


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """q [batch, m, heads, head_dim], caches [batch, places, key heads, head_dim]; returns a tensor as q."""
    unused = (k, v, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, block_table, alibi_slopes)
    assert all(argument is None for argument in unused)
    assert window_size == (-1, -1) and softcap == 0.0 and rotary_interleaved and not return_softmax_lse
    assert q.dtype in (torch.float16, torch.bfloat16) and k_cache.dtype == v_cache.dtype == q.dtype
    assert k_cache.stride(-1) == v_cache.stride(-1) == q.stride(-1) == 1
    (batch, _, heads, head_dim), (_, places, key_heads, _) = q.shape, k_cache.shape
    assert k_cache.shape == v_cache.shape == (batch, places, key_heads, head_dim)
    assert heads % key_heads == 0 and head_dim <= 256 and head_dim % 8 == 0
    assert cache_seqlens.dtype == torch.int32 and cache_seqlens.shape == (batch,)
    assert cache_seqlens.is_contiguous() and cache_seqlens.device == q.device
    assert isinstance(num_splits, int) and 0 <= num_splits <= 128
    attended = [
        _attended(q[i], k_cache[i, :filled], v_cache[i, :filled], softmax_scale or head_dim**-0.5, causal)
        for i, filled in enumerate(cache_seqlens.tolist())
    ]
    return torch.stack(attended).to(q.dtype)


def _attended(q, keys, values, scale, causal):
    """q [m, heads, head_dim] over [filled, key heads, head_dim], in float64."""
    m, filled, group = len(q), len(keys), q.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("mhd,nhd->hmn", q.double(), keys) * scale
    if causal:
        scores.masked_fill_(torch.ones(m, filled).tril(filled - m) == 0, -torch.inf)
    return torch.einsum("hmn,nhd->mhd", scores.softmax(-1), values)
