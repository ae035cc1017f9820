"""Attention: caches of many layers, each filled to the context and full of other values behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.ab.operands.base import NUM_CHECKS, Bound, Watched, fill_places, poison, spread
from harness.backends.base import Executor
from harness.backends.check import first_fault
from harness.kernel_reference import kernel_reference
from harness.specs.problem import AttentionProblem, Parameters

ROUNDINGS = 3
"""Libraries round the softmax's weights to the type before they multiply values with them, and sums of some places."""
BEYOND = 30.0
"""Deviation of what lies behind the context: whoever looks there gets another result. Finite, since a mask's 0 times
NaN is NaN."""


class AttentionPlaces:
    """See Places. arena: room for at least one layer's cache."""

    def __init__(self, arena: Tensor, problem: AttentionProblem, context: int) -> None:
        p = problem
        self._problem, self._filled = p, context
        size = 2 * p.num_kv_heads * p.max_context * p.head_dim
        shape = (-1, 2, p.num_kv_heads, p.max_context, p.head_dim)
        self._caches = arena[: arena.numel() // size * size].view(shape)
        self.num_places = self._caches.shape[0]
        self._context = torch.tensor([context], device=arena.device)
        self._q, self._out = (arena.new_empty(p.m, p.num_heads, p.head_dim) for _ in range(2))

    def bind(self, backend: type[Any], parameters: Parameters, executor: Executor) -> Bound:
        made = backend(executor, **parameters)
        launches = [made.bind(self._q, k, v, self._context, self._out, self._problem) for k, v in self._caches]
        return Bound(tuple(launches), made.read_bytes(self._problem, self._filled), write_bytes=0, kept_bytes=0)


class AttentionOperands(AttentionPlaces):
    """See Operands."""

    def __init__(self, arena: Tensor, problem: AttentionProblem, context: int, seed: int) -> None:
        super().__init__(arena, problem, context)
        self._random = torch.Generator(arena.device).manual_seed(seed)
        fill_places(self._caches, self._random)
        self._caches[:, :, :, context:] *= BEYOND
        self.flop = problem.flop(context) if problem.m > 1 else None
        self._checks = [torch.empty_like(self._q).normal_(generator=self._random) for _ in range(NUM_CHECKS)]
        self._exact = [self._attended(q, self._caches[self._place(i)]) for i, q in enumerate(self._checks)]
        self._watched = Watched(cache=self._caches, context=self._context, q=self._q)

    def pose(self, check: int) -> int:
        self._put(self._checks[check])
        return self._place(check)

    def fault(self, check: int) -> str:
        return first_fault(self._out, self._exact[check], roundings=ROUNDINGS)

    def renew(self) -> None:
        self._put(torch.empty_like(self._q).normal_(generator=self._random))

    def changed(self) -> str:
        return self._watched.changed()

    def _place(self, check: int) -> int:
        return spread(self.num_places, check)

    def _put(self, q: Tensor) -> None:
        self._q.copy_(q)
        self._watched.accept("q")
        poison(self._out)

    def _attended(self, q: Tensor, cache: Tensor) -> Tensor:
        """One key head after another: the scores of a long chunk are large in float64."""
        group = self._problem.num_heads // self._problem.num_kv_heads
        parts = [
            _exact_head(q[:, head * group : (head + 1) * group], cache[:, head : head + 1], self._filled)
            for head in range(self._problem.num_kv_heads)
        ]
        return torch.cat(parts, dim=1).to(self._out.device)


def _exact_head(q: Tensor, cache: Tensor, context: int) -> Tensor:
    """q [m, group, head_dim] on one key head's keys and values, by the reference of the op."""
    arrays = [tensor.double().cpu().numpy() for tensor in (q, *cache)]
    if len(q) == 1:
        attended = kernel_reference("decode_attention").decode_attention(arrays[0][0], *arrays[1:], context)[None]
    else:
        attended = kernel_reference("prefill_attention").prefill_attention(*arrays, context)
    return torch.from_numpy(np.ascontiguousarray(attended))
