"""The paged decode that takes lengths from the device: its signature, what it and its kernels demand, by float64.

Demands are those of xqa.py and of both kernels' C++ launchers: they take queries and output by their addresses alone,
the values' strides from the keys', lengths and page table as 32-bit integers, and semaphores that are zero.
"""

import torch

SEMAPHORE_BYTES = 8 << 20


def trtllm_batch_decode_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_seq_len,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    window_left=-1,
    out=None,
    out_dtype=None,
    o_sf_scale=None,
    o_sf_vec_size=None,
    sinks=None,
    kv_layout="HND",
    enable_pdl=None,
    backend="auto",
    q_len_per_req=1,
):
    """query and out [requests, heads, head_dim]; keys, values [pages, key heads, page size, head_dim]."""
    keys, values = kv_cache
    (requests, heads, head_dim), (pages, key_heads, page_size, _) = query.shape, keys.shape
    assert kv_layout == "HND" and backend == "auto" and q_len_per_req == 1 and window_left == -1
    assert keys.shape == values.shape == (pages, key_heads, page_size, head_dim) and page_size in (16, 32, 64)
    assert keys.stride() == values.stride() and keys.stride(-1) == 1
    assert all(stride % head_dim == 0 for stride in keys.stride()[:3]), "strides are counted in heads"
    assert query.dtype in (torch.float16, torch.bfloat16) and keys.dtype == values.dtype == query.dtype == out.dtype
    assert query.is_contiguous() and out.is_contiguous() and out.shape == query.shape
    assert heads % key_heads == 0 and heads // key_heads <= 32 and head_dim % 16 == 0 and head_dim <= 256
    assert block_tables.dtype == torch.int32 and block_tables.shape[0] == requests
    assert block_tables.shape[1] * page_size == max_seq_len
    assert seq_lens.dtype in (torch.int32, torch.uint32) and seq_lens.shape == (requests,)
    assert seq_lens.device == block_tables.device == workspace_buffer.device == query.device
    semaphores, scratch = workspace_buffer.view(torch.uint8).split([SEMAPHORE_BYTES, _scratch(workspace_buffer)])
    assert not semaphores.any() and len(scratch) >= 8 << 20
    scratch.fill_(0xFF)  # somebody else's partial results
    for request, filled in enumerate(seq_lens.tolist()):
        rows = [cache[block_tables[request].long()].transpose(1, 2).flatten(0, 1)[:filled] for cache in (keys, values)]
        k, v = (part.double().repeat_interleave(heads // key_heads, dim=1) for part in rows)
        weights = (torch.einsum("hd,nhd->hn", query[request].double(), k) * bmm1_scale).softmax(-1)
        out[request] = torch.einsum("hn,nhd->hd", weights, v) * bmm2_scale
    return out


def _scratch(workspace):
    return workspace.nbytes - SEMAPHORE_BYTES
