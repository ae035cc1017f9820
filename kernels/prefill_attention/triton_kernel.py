"""Causal attention of a prompt's new tokens over the cache, in Triton (FlashAttention, Dao et al., 2022).

A key is used by as many queries as a program has, some tens: enough FLOP a byte to be worth the matrix cores (tl.dot).
Scores never leave the registers. Programs of the query heads that share a key head are neighbours in the grid, so they
run at about the same time and find each other's keys in L2.

`context` is read on the device, as everywhere: the same launch, in a graph too, serves every chunk of a prompt that has
m tokens, and reads the filled places alone.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_HEAD_DIM, HEAD_DIM_STEP = 256, 16
"""Sizes between powers of two leave lanes idle, and no bytes are loaded for those; matrix cores want 16."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Config:
    """The tile of scores."""

    block_queries: int
    """Queries of one head that a program has: each key is read once for all of them."""
    block_keys: int
    num_warps: int
    num_stages: int
    """Blocks of keys in flight (double buffering from 2 on); each takes block_keys * head_dim elements of shared
    memory twice, of which gfx9 has 64 KiB and no asynchronous copy to fill it."""


CONFIGS = (
    # Queries by keys is work to share between loads; queries by head_dim is what a program's registers hold.
    Config(16, 16, 4, 1),  # a card without matrix cores multiplies from registers, and larger tiles spill there
    Config(32, 32, 4, 1),
    Config(64, 32, 4, 1),
    Config(64, 64, 4, 2),
    Config(64, 64, 8, 1),
    Config(128, 64, 8, 2),
    Config(128, 64, 4, 3),
    Config(128, 32, 8, 2),
)


# Triton compiles anew for a multiple of 16: not for the length of a prompt.
@triton.jit(do_not_specialize=("context", "m"))
def attend(
    q, k_cache, v_cache, context, out, scale_log2, m, q_stride, q_head_stride, out_stride, head_stride, place_stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """QUERIES tokens of one query head. The last tokens come first: they have most keys, and short work fills gaps."""
    head = tl.program_id(0)
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES
    d, rows = tl.arange(0, PADDED_DIM), first + tl.arange(0, QUERIES)
    in_dim = (d < HEAD_DIM)[None, :]
    is_query = (rows < m)[:, None] & in_dim
    token = rows.to(tl.int64)[:, None]
    queries = tl.load(q + token * q_stride + head * q_head_stride + d[None, :], mask=is_query, other=0.0)

    filled = tl.load(context)
    positions = filled - m + rows  # of the queries; a query sees the keys at its position and before
    end = tl.minimum(filled, filled - m + first + QUERIES)
    keys = (head // GROUP).to(tl.int64) * head_stride + tl.arange(0, KEYS).to(tl.int64)[:, None] * place_stride
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    norm = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    for start in range(0, end, KEYS):
        places = start + tl.arange(0, KEYS)
        mask = (places < filled)[:, None] & in_dim
        offsets = keys + start * place_stride + d[None, :]
        k = tl.load(k_cache + offsets, mask=mask, other=0.0)
        v = tl.load(v_cache + offsets, mask=mask, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale_log2
        # The mask costs a comparison a score, little beside head_dim products: one loop serves the diagonal and what
        # lies before it. Key 0 is seen by every row, so no row has only -inf (rows from m on see it too: filled >= m).
        scores = tl.where(places[None, :] <= positions[:, None], scores, float("-inf"))
        largest = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - largest[:, None])
        shrink = tl.exp2(best - largest)
        norm = norm * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = largest
    values = (sums / norm[:, None]).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + head * HEAD_DIM + d[None, :], values, mask=is_query)


def bind_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, config: Config
) -> Callable[[], None]:
    """out [m, heads, head_dim] = causal attention of q, of that shape, the last m of the first `context` places.

    Caches [kv_heads, max_context, head_dim], keys and values with the same strides; query heads h * group to
    (h + 1) * group - 1 share key head h. context is one int64 on the device, at least m. q may have strides between
    tokens and heads, out between tokens. All of one type: bf16, fp16 or fp32; sums are fp32.
    """
    _check(q, k_cache, v_cache, context, out)
    (m, heads, head_dim), kv_heads = q.shape, k_cache.shape[0]
    return functools.partial(
        attend[(heads, triton.cdiv(m, config.block_queries))],
        q, k_cache, v_cache, context, out, LOG2_E / head_dim**0.5, m, q.stride(0), q.stride(1), out.stride(0),
        k_cache.stride(0), k_cache.stride(1),
        GROUP=heads // kv_heads, HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim),
        QUERIES=config.block_queries, KEYS=config.block_keys,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor) -> None:
    (_, heads, head_dim), kv_heads = q.shape, k_cache.shape[0]
    if q.dtype not in DTYPES or any(tensor.dtype != q.dtype for tensor in (k_cache, v_cache, out)):
        raise ValueError(f"{q.dtype}, {k_cache.dtype}, {v_cache.dtype}, {out.dtype}: one type, bf16, fp16 or fp32")
    if not 1 <= head_dim <= MAX_HEAD_DIM or head_dim % HEAD_DIM_STEP or heads % kv_heads:
        raise ValueError(
            f"head_dim {head_dim}, {heads} query heads over {kv_heads}: a head has a multiple of {HEAD_DIM_STEP}"
            f" values, {MAX_HEAD_DIM} at most, and a key head whole groups of them"
        )
    if k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride() or k_cache.shape[-1] != head_dim:
        raise ValueError(f"caches {tuple(k_cache.shape)}, {tuple(v_cache.shape)}: not alike, or not of q's head_dim")
    if context.dtype != torch.int64 or context.numel() != 1 or out.shape != q.shape:
        raise ValueError(f"context {context.dtype} {tuple(context.shape)}, out {tuple(out.shape)} for {tuple(q.shape)}")
    if q.stride(-1) != 1 or k_cache.stride(-1) != 1 or out.stride()[1:] != (head_dim, 1):
        raise ValueError(f"strides {q.stride()}, {k_cache.stride()}, {out.stride()}: elements have to be neighbours")
