"""Attention: caches of many layers, each filled to the context and full of other values behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.ab.operands.base import CHECKS, NUM_INPUTS, SPOT_ROUNDINGS, Bound, Watched, fill_places, poison, spread
from harness.backends.base import Executor
from harness.backends.check import first_fault
from harness.kernel_reference import kernel_reference
from harness.specs.problem import AttentionProblem, Parameters

ROUNDINGS = 3
"""Libraries round the softmax's weights to the type before they multiply values with them, and sums of some places."""
BEYOND = 30.0
"""Deviation of what lies behind the context: whoever looks there gets another result. Finite, since a mask's 0 times
NaN is NaN."""


SCORES_AT_ONCE = 1 << 22
"""Of the reference, 32 MiB in float64: so many queries at a time as have no more, and one at least."""
SCORE_ARRAYS = 4
"""Of so many scores, that the reference has at once: products, what is masked of them, their exponentials, weights."""


def queries_at_once(group: int, context: int) -> int:
    """Of `group` heads each, over a context."""
    return max(1, SCORES_AT_ONCE // (group * context))


def reference_bytes(problem: AttentionProblem, context: int) -> int:
    """What working out the exact result needs beside it, in float64: one key head's keys and values twice, as the
    reference makes arrays of its own, and the scores."""
    p = problem
    group = p.num_heads // p.num_kv_heads
    scores = min(p.m, queries_at_once(group, context)) * group * context
    values = 4 * context * p.head_dim + SCORE_ARRAYS * scores + 2 * p.m * group * p.head_dim
    return values * torch.float64.itemsize


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
        self._fresh = [torch.empty_like(self._q).normal_(generator=self._random) for _ in range(NUM_INPUTS)]
        self._exact = [
            self._attended(self._fresh[which], self._caches[self._place(check)])
            for check, (which, _) in enumerate(CHECKS)
        ]
        self._watched = Watched(cache=self._caches, context=self._context, q=self._q)

    def pose(self, check: int) -> int:
        self._put(self._fresh[CHECKS[check][0]])
        return self._place(check)

    def fault(self, check: int) -> str:
        return first_fault(self._out, self._exact[check], roundings=ROUNDINGS)

    def renew(self) -> None:
        self._put(torch.empty_like(self._q).normal_(generator=self._random))

    def mark(self, place: int, num_calls: int) -> None:
        """What is right hangs on no call before."""

    def spot_fault(self, place: int) -> str:
        """Of one query on one key head, others each time."""
        p = self._problem
        query, head = (
            int(torch.randint(count, (), generator=self._random, device=self._q.device))
            for count in (p.m, p.num_kv_heads)
        )
        heads = self._heads_of(head)
        exact = _exact_head(
            self._q[query : query + 1, heads], self._caches[place][:, head : head + 1], self._filled - p.m + query + 1
        )
        out = self._out[query : query + 1, heads]
        return first_fault(out, exact.to(out.device), roundings=SPOT_ROUNDINGS * ROUNDINGS)

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
        exact = torch.empty(q.shape, dtype=torch.float64)
        for head in range(self._problem.num_kv_heads):
            heads = self._heads_of(head)
            exact[:, heads] = _exact_head(q[:, heads], cache[:, head : head + 1], self._filled)
        return exact.to(self._out.device)

    def _heads_of(self, key_head: int) -> slice:
        """The query heads that share a key head."""
        group = self._problem.num_heads // self._problem.num_kv_heads
        return slice(key_head * group, (key_head + 1) * group)


def _exact_head(q: Tensor, cache: Tensor, context: int) -> Tensor:
    """q [m, group, head_dim] on one key head's keys and values, by the reference of the op: some queries at a time,
    each block of them as a chunk that ends where its last one stands."""
    queries, keys, values = (
        tensor.double().cpu().numpy() for tensor in (q, cache[0, :, :context], cache[1, :, :context])
    )
    if len(q) == 1:
        attended = kernel_reference("decode_attention").decode_attention(queries[0], keys, values, context)[None]
        return torch.from_numpy(np.ascontiguousarray(attended))
    at_once = queries_at_once(q.shape[1], context)
    prefill = kernel_reference("prefill_attention").prefill_attention
    exact = np.empty_like(queries)
    for start in range(0, len(queries), at_once):
        block = queries[start : start + at_once]
        exact[start : start + at_once] = prefill(block, keys, values, context - len(queries) + start + len(block))
    return torch.from_numpy(exact)
