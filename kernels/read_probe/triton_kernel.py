"""The read, copy and write probes in Triton: how fast memory can be streamed at all, and a proof that it was read.

A card reads memory in sectors of 32 bytes and cache lines of 128. A warp (32 lanes on CUDA, a wave of 64 on gfx9) whose
lanes ask for 16 neighbouring bytes each is one wide load of whole lines: every fetched byte is used ("coalesced"), by
the fewest instructions. Triton finds the 16 bytes by itself where the address of a block is a multiple of 16 bytes,
which it learns from the pointer's alignment and from the constants below.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Config:
    """How the words are shared out."""

    block_words: int
    """Words that a program asks for at once: a power of two. Divided by the lanes of a program and by two (a load of
    128 bits is two words) it is the number of loads that each lane has in flight."""
    num_programs: int
    """Each walks through the buffer in strides of all of them: some for each of the card's 40 to 140 processors."""
    num_warps: int
    """Warps, or waves, of one program."""


CONFIGS = (
    # Latency is hidden by bytes in flight (Little's law: 3 TB/s times 700 ns are 2 MB on the whole card), and whether
    # they come from few programs with deep loads or from many shallow ones is what a tuner has to find out.
    Config(1024, 512, 4),
    Config(2048, 512, 4),
    Config(4096, 512, 8),
    Config(2048, 1024, 4),
    Config(2048, 2048, 4),
    Config(4096, 2048, 8),
)


@triton.jit
def sum_words(words, partials, num_words, BLOCK: tl.constexpr):
    """partials[program] = the wrapping sum of the blocks program, program + num_programs, ..."""
    program = tl.program_id(0).to(tl.int64)  # 64 bits: a buffer of 2^31 words is only 16 GiB
    offsets = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.int64)  # one a lane and load: lanes meet once, after the loop
    for start in range(program * BLOCK, num_words, tl.num_programs(0) * BLOCK):
        # .cg caches in L2 alone: no word is asked for twice, so L1 would only be a way round.
        sums += tl.load(words + start + offsets, mask=start + offsets < num_words, other=0, cache_modifier=".cg")
    tl.store(partials + program, tl.sum(sums, 0))


@triton.jit
def sum_partials(partials, total, num_partials, BLOCK: tl.constexpr):
    """One program, so no atomics: the order is fixed."""
    offsets = tl.arange(0, BLOCK)
    tl.store(total, tl.sum(tl.load(partials + offsets, mask=offsets < num_partials, other=0), 0))


@triton.jit
def copy_words(source, target, num_words, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    for start in range(program * BLOCK, num_words, tl.num_programs(0) * BLOCK):
        inside = start + offsets < num_words
        values = tl.load(source + start + offsets, mask=inside, cache_modifier=".cg")
        # .cs: streamed, the first to leave the cache. What comes in next needs the room more.
        tl.store(target + start + offsets, values, mask=inside, cache_modifier=".cs")


@triton.jit
def write_words(target, value, num_words, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    for start in range(program * BLOCK, num_words, tl.num_programs(0) * BLOCK):
        values = tl.full([BLOCK], 0, tl.int64) + value
        tl.store(target + start + offsets, values, mask=start + offsets < num_words, cache_modifier=".cs")


def bind_read(words: Tensor, total: Tensor, config: Config) -> Callable[[], None]:
    """total [1] = the sum of words [num_words] modulo 2^64; both contiguous int64."""
    _check(words, total)
    partials = torch.empty(config.num_programs, dtype=torch.int64, device=words.device)
    read = functools.partial(
        sum_words[(config.num_programs,)], words, partials, words.numel(), config.block_words,
        num_warps=config.num_warps,
    )  # fmt: skip
    block = triton.next_power_of_2(config.num_programs)
    add = functools.partial(sum_partials[(1,)], partials, total, config.num_programs, block, num_warps=4)

    def launch() -> None:
        read()
        add()

    return launch


def bind_copy(source: Tensor, target: Tensor, config: Config) -> Callable[[], None]:
    """target = source; both contiguous int64 of one size."""
    _check(source, target)
    if source.numel() != target.numel():
        raise ValueError(f"copies {source.numel()} words to {target.numel()}")
    return functools.partial(
        copy_words[(config.num_programs,)], source, target, source.numel(), config.block_words,
        num_warps=config.num_warps,
    )  # fmt: skip


def bind_write(target: Tensor, value: int, config: Config) -> Callable[[], None]:
    """Every word of target, contiguous int64, = value."""
    _check(target)
    return functools.partial(
        write_words[(config.num_programs,)], target, value, target.numel(), config.block_words,
        num_warps=config.num_warps,
    )  # fmt: skip


def _check(*buffers: Tensor) -> None:
    for buffer in buffers:
        if buffer.dtype != torch.int64 or not buffer.is_contiguous():
            raise ValueError(f"{buffer.dtype} with strides {buffer.stride()}: the probe takes contiguous int64")
