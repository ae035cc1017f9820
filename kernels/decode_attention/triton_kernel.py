"""Attention of one new query a request over its cache, in Triton: contiguous or paged.

Every key and value is read once, for all the query heads that share it: they are the rows of one small product. A key
is used by 1 to 16 queries, far too few to keep the card's arithmetic busy, so as with a gemv what counts is that the
cache streams. One request with 8 key heads would give 8 programs for some hundred processors: so the context is split
as well, each split has its own softmax, and a second kernel puts the splits together (Flash-Decoding, Dao et al.,
2023).

`context` is read on the device: a captured graph replays its arguments, but a context grows.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_GROUP = 16  # the rows of a matrix core's smallest product
MAX_HEAD_DIM, HEAD_DIM_STEP = 256, 16
"""Sizes between powers of two leave lanes idle, and no bytes are loaded for those; matrix cores want 16."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Config:
    """How the context is shared out."""

    block: int
    """Places that a program takes at once."""
    num_splits: int
    """Programs that share the context of one key head."""
    num_warps: int
    num_stages: int
    """Blocks that are in flight at once: while one is computed with, the next ones are on their way (CUDA: through
    shared memory; gfx9 has no asynchronous copy, and 1 leaves it to the number of waves)."""


CONFIGS = (
    # Splits first: about 2 programs a processor, at 8 key heads. Small blocks leave registers for more waves.
    Config(16, 16, 4, 1),  # a card without matrix cores multiplies from registers, and larger blocks spill there
    Config(32, 16, 4, 2),
    Config(64, 16, 4, 2),
    Config(32, 32, 4, 1),
    Config(64, 32, 4, 2),
    Config(64, 64, 4, 1),
    Config(128, 32, 8, 1),
    Config(64, 1, 4, 2),  # a short context, or so many requests that the card is full without splits
)


@triton.jit
def scores_of(q, k, ONE: tl.constexpr):
    """q [rows, d] k [block, d]^T: one row by plain multiplication, several by the matrix cores (16 rows at least)."""
    if ONE:
        scores = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)[None, :]
    else:
        # ieee: fp32 stays fp32; by default CUDA would round it to 10 bits (TF32).
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    return scores


@triton.jit
def weighted_sum(weights, v, ONE: tl.constexpr):
    """weights [rows, block] v [block, d]."""
    if ONE:
        sums = tl.sum(tl.trans(weights) * v.to(tl.float32), 0)[None, :]
    else:
        sums = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return sums


@triton.jit
def rows_of(
    places, inside, block_table, table_stride, request, block_stride, place_stride,
    PAGED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """[block]: where in a cache the rows of these places of a request begin, int64."""
    if PAGED:  # places of a block lie together, so lanes still read whole rows; only their beginnings jump
        blocks = tl.load(block_table + request * table_stride + places // BLOCK_SIZE, mask=inside, other=0)
        rows = blocks.to(tl.int64) * block_stride + (places % BLOCK_SIZE) * place_stride
    else:
        rows = request.to(tl.int64) * block_stride + places * place_stride
    return rows


@triton.jit
def softmax_step(scores, v, best, norm, sums, ONE: tl.constexpr):
    """(best, norm, sums) with one block more; scores [rows, block] in powers of two, v [block, d].

    Online softmax (Milakov and Gimelshein, 2018): sums so far shrink when a larger score comes. In powers of two, which
    is what the hardware computes.
    """
    largest = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - largest[:, None])
    shrink = tl.exp2(best - largest)
    sums = sums * shrink[:, None] + weighted_sum(weights, v, ONE)
    return largest, norm * shrink + tl.sum(weights, 1), sums


@triton.jit
def attended(
    queries, k_cache, v_cache, block_table, table_stride, request, block_stride, place_stride, begin, end, scale_log2,
    PAGED: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(largest score, sum of weights, weighted sum of values) [rows], [rows], [rows, d] of the places begin to end."""
    d = tl.arange(0, PADDED_DIM)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(begin, end, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < end
        rows = rows_of(
            places, inside, block_table, table_stride, request, block_stride, place_stride, PAGED, BLOCK_SIZE
        )
        # d is the fastest dimension: 8 neighbouring bf16 a lane are one load of 128 bits. Masks are the same along it.
        offsets = rows[:, None] + d[None, :]
        mask = inside[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_cache + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
        v = tl.load(v_cache + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
        scores = tl.where(inside[None, :], scores_of(queries, k, ROWS == 1) * scale_log2, float("-inf"))
        best, norm, sums = softmax_step(scores, v, best, norm, sums, ROWS == 1)
    return best, norm, sums


# Triton compiles anew for a multiple of 16: none of what differs from layer to layer or from request to request.
@triton.jit(do_not_specialize=("block_table", "context", "calls", "table_stride"))
def attend(
    q, k_cache, v_cache, block_table, context, out, partial_sums, partial_stats, calls, scale_log2, q_stride,
    out_stride, table_stride, block_stride, place_stride, head_stride, num_heads,
    PAGED: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One split of one key head of one request. Without splits out is final, else partials of all heads."""
    kv_head, split, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if calls is not None and kv_head + split + request == 0:  # as in gemv
        tl.atomic_add(calls, 1, sem="relaxed")
    d, rows = tl.arange(0, PADDED_DIM), tl.arange(0, ROWS)
    # A block's sides are powers of two; a head of 96 is masked, on a border that keeps 128 bits.
    is_query = (rows < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    places = heads[:, None] * HEAD_DIM + d[None, :]
    queries = tl.load(q + request.to(tl.int64) * q_stride + places, mask=is_query, other=0.0)

    filled = tl.load(context + request)
    stretch = tl.cdiv(tl.cdiv(filled, BLOCK), SPLITS) * BLOCK
    begin, end = split * stretch, tl.minimum(filled, (split + 1) * stretch)
    best, norm, sums = attended(
        queries, k_cache + kv_head * head_stride, v_cache + kv_head * head_stride, block_table, table_stride, request,
        block_stride, place_stride, begin, end, scale_log2, PAGED, BLOCK_SIZE, ROWS, HEAD_DIM, PADDED_DIM, BLOCK,
    )  # fmt: skip

    if SPLITS == 1:
        # A request without places has a norm of 0: servers fill up a batch with such, and get zeros.
        values = (sums / tl.where(norm == 0.0, 1.0, norm)[:, None]).to(out.dtype.element_ty)
        tl.store(out + request.to(tl.int64) * out_stride + places, values, mask=is_query)
    else:  # not yet divided: an empty split has 0 and -inf, and weighs nothing
        slots = (request * num_heads + heads) * SPLITS + split
        tl.store(partial_sums + slots[:, None] * HEAD_DIM + d[None, :], sums, mask=is_query)
        tl.store(partial_stats + 2 * slots, best, mask=rows < GROUP)
        tl.store(partial_stats + 2 * slots + 1, norm, mask=rows < GROUP)


@triton.jit
def combine(
    partial_sums, partial_stats, out, out_stride, num_heads,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr,
):  # fmt: skip
    """One query head of one request: the splits' sums, brought to one common largest score."""
    head, request = tl.program_id(0), tl.program_id(1)
    splits, d = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED_DIM)
    slots = (request * num_heads + head) * SPLITS + splits
    best = tl.load(partial_stats + 2 * slots, mask=splits < SPLITS, other=float("-inf"))
    norm = tl.load(partial_stats + 2 * slots + 1, mask=splits < SPLITS, other=0.0)
    peak = tl.max(best, 0)
    weights = tl.exp2(best - tl.where(peak == float("-inf"), 0.0, peak))  # 0 each for a request without places
    inside = (splits < SPLITS)[:, None] & (d < HEAD_DIM)[None, :]
    sums = tl.load(partial_sums + slots[:, None] * HEAD_DIM + d[None, :], mask=inside, other=0.0)
    total = tl.sum(norm * weights, 0)
    values = tl.sum(sums * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    place = out + request.to(tl.int64) * out_stride + head * HEAD_DIM + d
    tl.store(place, values.to(out.dtype.element_ty), mask=d < HEAD_DIM)


def bind_contiguous(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, config: Config
) -> Callable[[], None]:
    """out [requests, heads, head_dim] = attention of q, of the same shape, over the first context[r] places.

    Caches [requests, kv_heads, max_context, head_dim], a request's contiguous, requests with a stride; query heads
    h * group to (h + 1) * group - 1 share key head h, group 1 to 16. context [requests], int64 or int32, on the device:
    0 gives zeros. q and out may have a stride between requests. All of one type: bf16, fp16 or fp32; sums are fp32.
    """
    block_stride, head_stride, place_stride, _ = k_cache.stride()
    strides = block_stride, place_stride, head_stride
    return _bind(q, k_cache, v_cache, None, context, out, strides, config, None)


def bind_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context: Tensor, out: Tensor, config: Config,
    calls: Tensor | None = None,
) -> Callable[[], None]:  # fmt: skip
    """As bind_contiguous, over caches [num_blocks, block_size, kv_heads, head_dim] by their strides.

    block_table int32 [requests, max_blocks]: place p of request r is in block block_table[r, p // block_size]. calls:
    int64 on the device, to which every launch adds one.
    """
    if block_table.dtype != torch.int32 or block_table.stride(1) != 1 or block_table.shape[0] != q.shape[0]:
        raise ValueError(f"{block_table.dtype} {tuple(block_table.shape)}: a block table is int32 [requests, blocks]")
    block_stride, place_stride, head_stride, _ = k_cache.stride()
    strides = block_stride, place_stride, head_stride
    return _bind(q, k_cache, v_cache, block_table, context, out, strides, config, calls)


def _bind(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None, context: Tensor, out: Tensor,
    strides: tuple[int, int, int], config: Config, calls: Tensor | None,
) -> Callable[[], None]:  # fmt: skip
    paged = block_table is not None
    kv_heads = k_cache.shape[2 if paged else 1]
    _check(q, k_cache, v_cache, context, out, kv_heads)
    (requests, heads, head_dim), splits = q.shape, config.num_splits
    group, padded_dim = heads // kv_heads, triton.next_power_of_2(head_dim)
    sums = torch.empty((requests, heads, splits, head_dim) if splits > 1 else 1, dtype=torch.float32, device=q.device)
    stats = torch.empty((requests, heads, splits, 2) if splits > 1 else 1, dtype=torch.float32, device=q.device)
    read = functools.partial(
        attend[(kv_heads, splits, requests)],
        q, k_cache, v_cache, block_table, context, out, sums, stats, calls, LOG2_E / head_dim**0.5, q.stride(0),
        out.stride(0), block_table.stride(0) if block_table is not None else 0, *strides, heads,
        PAGED=paged, BLOCK_SIZE=k_cache.shape[1] if paged else 1, GROUP=group, ROWS=1 if group == 1 else 16,
        HEAD_DIM=head_dim, PADDED_DIM=padded_dim, BLOCK=config.block, SPLITS=splits,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits == 1:
        return read
    merge = functools.partial(
        combine[(heads, requests)], sums, stats, out, out.stride(0), heads,
        HEAD_DIM=head_dim, PADDED_DIM=padded_dim, SPLITS=splits, PADDED_SPLITS=triton.next_power_of_2(splits),
        num_warps=4,
    )  # fmt: skip

    def launch() -> None:
        read()
        merge()

    return launch


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, kv_heads: int) -> None:
    requests, heads, head_dim = q.shape
    if q.dtype not in DTYPES or any(tensor.dtype != q.dtype for tensor in (k_cache, v_cache, out)):
        raise ValueError(f"{q.dtype}, {k_cache.dtype}, {v_cache.dtype}, {out.dtype}: one type, bf16, fp16 or fp32")
    is_head = 1 <= head_dim <= MAX_HEAD_DIM and head_dim % HEAD_DIM_STEP == 0
    if not is_head or heads % kv_heads or not 1 <= heads // kv_heads <= MAX_GROUP:
        raise ValueError(
            f"head_dim {head_dim}, {heads} query heads over {kv_heads}: a head has a multiple of {HEAD_DIM_STEP}"
            f" values, {MAX_HEAD_DIM} at most, and a group 1 to {MAX_GROUP} of them"
        )
    if k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride() or k_cache.shape[-1] != head_dim:
        raise ValueError(f"caches {tuple(k_cache.shape)}, {tuple(v_cache.shape)}: not alike, or not of q's head_dim")
    if context.dtype not in (torch.int64, torch.int32) or context.shape != (requests,) or out.shape != q.shape:
        raise ValueError(f"context {context.dtype} {tuple(context.shape)}, out {tuple(out.shape)} for {tuple(q.shape)}")
    for tensor in (q, out):
        if tensor.stride()[1:] != (head_dim, 1):
            raise ValueError(f"strides {tensor.stride()}: heads of a request have to be contiguous")
    if k_cache.stride(-1) != 1:
        raise ValueError(f"strides {k_cache.stride()}: elements of a key have to be neighbours")
