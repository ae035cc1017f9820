"""out = x weight^T + bias for one to eight rows of x, in Triton: the product that a decode step waits for.

Each weight is used m times, 2 m FLOP for two bytes, where a card has some hundred FLOP for a byte: what counts is that
the weight streams. So there is no tl.dot (a matrix core works on 16 rows, of which 8 or more would be padding) and a
program keeps one fp32 accumulator for each weight of its tile and row of x: inside the loop no lane waits for another,
and sums cross lanes once, after it. That bounds the tile: beyond 128 accumulators a lane they spill to memory, or, on
AMD's cards with matrix cores, move to and from registers that only those compute with.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 8
MAX_ACCUMULATORS = 128
"""Of a lane."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Config:
    """The tile of one program and how many share a row of the weight."""

    block_n: int
    """Rows of the weight a program."""
    block_k: int
    """Elements of each row a step. With 8 (bf16) * lanes * num_warps of them, one 128-bit load of all lanes is one
    stretch of one row, and x lies in registers as the weight does. Other sizes move x through shared memory."""
    split_k: int
    """Programs that share a row, each with a stretch of k: for a small n, whose programs would not fill the card."""
    num_warps: int
    cache: str
    """How the weight passes the caches: ".cg" by L2 alone, since no weight is read twice; "" by L1 as well, whose
    misses some cards merge better."""

    def fits(self, m: int, lanes: int) -> bool:
        """Whether m rows' accumulators stay in the registers of such warps."""
        return m * self.block_n * self.block_k <= MAX_ACCUMULATORS * lanes * self.num_warps


CONFIGS = (
    # Full-width stretches of 32 lanes (CUDA): 8 * 32 * num_warps.
    Config(2, 1024, 1, 4, ".cg"),
    Config(4, 1024, 1, 4, ".cg"),
    Config(4, 512, 1, 2, ".cg"),
    Config(8, 256, 1, 1, ".cg"),
    Config(4, 1024, 1, 4, ""),
    # Of 64 lanes (gfx9).
    Config(2, 2048, 1, 4, ".cg"),
    Config(4, 1024, 1, 2, ".cg"),
    Config(4, 512, 1, 1, ".cg"),
    Config(4, 512, 1, 1, ""),
    # Fewer rows than the card has room for.
    Config(2, 1024, 4, 4, ".cg"),
    Config(4, 512, 4, 1, ".cg"),
)


# Triton compiles anew for an address that is no multiple of 16, and counters lie side by side.
@triton.jit(do_not_specialize=("calls",))
def gemv(
    x, weight, bias, out, calls, n, k, x_stride, weight_stride, out_stride, split_stride,
    M: tl.constexpr, HAS_BIAS: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CACHE: tl.constexpr,
):  # fmt: skip
    """One tile of rows, one stretch of k; out is [M, n], or with SPLIT_K > 1 fp32 partials [SPLIT_K, M, n]."""
    # A replayed graph runs kernels and no Python: only they can say how often they ran.
    if calls is not None and tl.program_id(0) + tl.program_id(1) == 0:
        tl.atomic_add(calls, 1, sem="relaxed")
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    columns = tl.arange(0, BLOCK_K)
    # 64 bits: a head of 152k x 16k elements is beyond 2^31.
    tile = weight + rows.to(tl.int64)[:, None] * weight_stride + columns[None, :]
    stretch = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT_K) * BLOCK_K
    sums = ()
    for _ in tl.static_range(M):  # a tuple of M tiles: unrolled, so each row of x has registers of its own
        sums = sums + (tl.zeros([BLOCK_N, BLOCK_K], tl.float32),)  # noqa: RUF005  Triton's compiler knows no `*sums`
    for start in range(split * stretch, tl.minimum(k, (split + 1) * stretch), BLOCK_K):
        # The ragged ends of n and k are masked: what is outside is not read, and adds 0. k and the stride being
        # multiples of 16 makes the mask the same for 8 neighbours, and only then do they come in one load.
        inside = (rows < n)[:, None] & (start + columns < k)[None, :]
        w = tl.load(tile + start, mask=inside, other=0.0, cache_modifier=CACHE).to(tl.float32)
        added = ()
        for m in tl.static_range(M):
            # All programs read the same few rows of x: the cache is told to keep them longest.
            row = tl.load(
                x + m * x_stride + start + columns, mask=start + columns < k, other=0.0, eviction_policy="evict_last"
            )
            added = added + (sums[m] + w * row.to(tl.float32)[None, :],)  # noqa: RUF005
        sums = added
    for m in tl.static_range(M):
        total = tl.sum(sums[m], 1)
        if HAS_BIAS and SPLIT_K == 1:
            total += tl.load(bias + rows, mask=rows < n, other=0.0).to(tl.float32)
        place = out + split.to(tl.int64) * split_stride + m * out_stride + rows
        tl.store(place, total.to(out.dtype.element_ty), mask=rows < n)


@triton.jit
def add_splits(
    partials, bias, out, n, out_stride, M: tl.constexpr, HAS_BIAS: tl.constexpr, SPLIT_K: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Partials in ascending order: the same sum every time, which atomics do not give."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, inside = tl.program_id(1), columns < n
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(partials + (split * M + row) * n + columns, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, total.to(out.dtype.element_ty), mask=inside)


def bind_gemv(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, config: Config, calls: Tensor | None = None
) -> Callable[[], None]:
    """out [m, n] = x [m, k] weight [n, k]^T + bias [n] or none; m is 1 to 8.

    All of one type, bf16, fp16 or fp32; sums are fp32. Rows of x, weight and out may have a stride, elements within
    them are neighbours. calls: int64 on the device, to which every launch adds one.
    """
    _check(x, weight, bias, out)
    (m, k), n = x.shape, weight.shape[0]
    split = config.split_k > 1
    target = torch.empty((config.split_k, m, n), dtype=torch.float32, device=out.device) if split else out
    multiply = functools.partial(
        gemv[(triton.cdiv(n, config.block_n), config.split_k)],
        x, weight, bias, target, calls, n, k, x.stride(0), weight.stride(0), target.stride(-2), m * n,
        M=m, HAS_BIAS=bias is not None, SPLIT_K=config.split_k, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        CACHE=config.cache, num_warps=config.num_warps,
    )  # fmt: skip
    if not split:
        return multiply
    block = 512
    add = functools.partial(
        add_splits[(triton.cdiv(n, block), m)], target, bias, out, n, out.stride(0),
        M=m, HAS_BIAS=bias is not None, SPLIT_K=config.split_k, BLOCK=block, num_warps=4,
    )  # fmt: skip

    def launch() -> None:
        multiply()
        add()

    return launch


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    tensors = [x, weight, out] if bias is None else [x, weight, out, bias]
    if x.dtype not in DTYPES or any(tensor.dtype != x.dtype for tensor in tensors):
        raise ValueError(f"{[tensor.dtype for tensor in tensors]}: the product is for one type, bf16, fp16 or fp32")
    if not 1 <= x.shape[0] <= MAX_ROWS:
        raise ValueError(f"{x.shape[0]} rows: the product is for 1 to {MAX_ROWS}")
    shapes = weight.shape[1] == x.shape[1], out.shape == (x.shape[0], weight.shape[0])
    if not all(shapes) or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(f"{[tuple(tensor.shape) for tensor in tensors]}: no product out = x weight^T + bias")
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError(f"{[tensor.stride() for tensor in tensors]}: elements of a row have to be neighbours")
