"""Attention of one request over vLLM's cache in blocks by one of our backends, and the write of new places into it.

A layer's cache is [blocks, num_kv_heads, 2 * block_size, head_dim]: a head's keys in a block, then its values. vLLM's
own kernels for CPUs keep keys transposed there and ours keep them as rows, so whoever wrote a cache has to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.backends.base import AttentionBackend, BlockCache, Executor
from harness.backends.launch import KERNEL_DTYPES, KernelLaunch, bind_kernel
from harness.backends.weights import dtype_name
from harness.errors import UnavailableError
from harness.kernel_build import kernel_source, load_kernel

if TYPE_CHECKING:
    from harness.specs.problem import AttentionProblem

Attend = Callable[[Tensor, BlockCache, int, Tensor], None]
"""(q [m, num_heads, head_dim], the request's cache, filled places with the m new ones, out as q)"""


def keys_and_values(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """vLLM's [blocks, num_kv_heads, block_size, 2 * head_dim] as two, [blocks, num_kv_heads, block_size, head_dim]."""
    blocks, heads, size, both = kv_cache.shape
    keys, values = kv_cache.view(blocks, heads, 2, size, both // 2).unbind(2)
    return keys, values


class OnBlocks:
    """One query, by a backend that reads blocks where they lie: bound to a layer's cache once, moved to requests."""

    def __init__(self, backend: AttentionBackend, problem: AttentionProblem) -> None:
        self._backend, self._problem = backend, problem
        self._context = torch.zeros(1, dtype=torch.int64)
        self._bound_to = 0

    def __call__(self, q: Tensor, cache: BlockCache, filled: int, out: Tensor) -> None:
        if self._bound_to != cache.keys.data_ptr():
            self._bind(q, cache, out)
        self._context.fill_(filled)
        q, table = q.contiguous(), self._table(cache.table)
        self._move(q.data_ptr(), out.data_ptr(), table.data_ptr())

    def _bind(self, q: Tensor, cache: BlockCache, out: Tensor) -> None:
        """Hybrid models have blocks of odd sizes, which are read as parts of a power of two."""
        size = cache.keys.shape[2]
        part = size & -size
        keys, values = in_parts(cache.keys, part), in_parts(cache.values, part)
        self._num_parts, self._parts_apart = size // part, cache.keys.stride(0) // keys.stride(0)
        bound = BlockCache(keys, values, cache.table.new_empty(1))
        q, out = torch.empty(q.shape, dtype=q.dtype), torch.empty(out.shape, dtype=out.dtype)
        launch = self._backend.bind_blocks(q, bound, self._context, out, self._problem)
        self._move, self._bound_to = launch.mover(q, out, bound.table), cache.keys.data_ptr()

    def _table(self, table: Tensor) -> Tensor:
        if self._num_parts == 1:
            return table
        parts = torch.arange(self._num_parts, dtype=table.dtype)
        return (table[:, None] * self._parts_apart + parts).flatten()


def in_parts(blocks: Tensor, part: int) -> Tensor:
    """[blocks, heads, block_size, head_dim] as [., heads, part, head_dim], block_size a multiple of part: a block is
    block_size / part of these in a row, and from block to block they lie stride(0) / (part * head_dim) apart."""
    count, heads, size, head_dim = blocks.shape
    if part == size:
        return blocks
    stride, rest = divmod(blocks.stride(0), part * head_dim)
    if rest:
        raise UnavailableError(
            f"vLLM's blocks of {size} places are not whole parts of {part}", "select without `harness ab attention`"
        )
    shape = (count - 1) * stride + size // part, heads, part, head_dim
    return blocks.as_strided(shape, (part * head_dim, blocks.stride(1), head_dim, 1))


class OnGathered:
    """Any number of queries, by a backend that wants the request's cache in one piece: it is copied for each call."""

    def __init__(self, backend: AttentionBackend, problem: AttentionProblem) -> None:
        self._backend, self._problem = backend, problem

    def __call__(self, q: Tensor, cache: BlockCache, filled: int, out: Tensor) -> None:
        keys, values = gathered(cache.keys, cache.table, filled), gathered(cache.values, cache.table, filled)
        problem = self._problem.model_copy(update={"m": len(q), "max_context": keys.shape[1]})
        self._backend.bind(q.contiguous(), keys, values, torch.tensor([filled], device=q.device), out, problem)()


def gathered(blocks: Tensor, table: Tensor, filled: int) -> Tensor:
    """[num_kv_heads, places of whole blocks, head_dim], zeros behind the filled ones: a backend may give what lies
    there no weight, and 0 x NaN is NaN."""
    needed = table[: -(-filled // blocks.shape[2])]
    places = blocks[needed.long()].transpose(0, 1).flatten(1, 2)
    places[:, filled:] = 0
    return places


class PlaceWriter:
    """Writes new keys and values into a layer's cache; one token's by a launch that is bound once."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._library = executor, load_kernel(kernel_source("elementwise"))
        self._bound_to = 0

    def __call__(self, keys: Tensor, values: Tensor, cache: tuple[Tensor, Tensor], slots: Tensor) -> None:
        """keys and values [at least m, num_kv_heads, head_dim]; slots int64 [m]: block * block_size + place, negative
        for a token that has none."""
        keys, values = (tensor if tensor[0].is_contiguous() else tensor.contiguous() for tensor in (keys, values))
        if len(slots) != 1:
            self._bind(keys, values, cache, slots)()
            return
        if self._bound_to != cache[0].data_ptr():
            one = torch.empty_like(keys[:1]), torch.empty_like(values[:1]), torch.empty_like(slots)
            self._move = self._bind(one[0], one[1], cache, one[2]).mover(*one)
            self._bound_to = cache[0].data_ptr()
        self._move(keys.data_ptr(), values.data_ptr(), slots.data_ptr())

    def _bind(self, keys: Tensor, values: Tensor, cache: tuple[Tensor, Tensor], slots: Tensor) -> KernelLaunch:
        (_, heads, size, head_dim), block_stride = cache[0].shape, cache[0].stride(0)
        sizes = (len(slots), heads, head_dim, size, block_stride, cache[0].stride(1), keys.stride(0), values.stride(0))
        name = f"write_places_{KERNEL_DTYPES[dtype_name(cache[0])]}"
        return bind_kernel(self._library, name, (keys, values, slots, *cache, *sizes), self._executor)
