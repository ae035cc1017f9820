"""Products: weights that lie one after another through an arena."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.ab.operands.base import CHECKS, NUM_INPUTS, SPOT_ROUNDINGS, Bound, Watched, poison, spread
from harness.backends.base import Executor
from harness.backends.check import exact_product, first_fault
from harness.specs.problem import LinearProblem, Parameters

WEIGHT_DEVIATION = 1 / 32
"""Of normal random weights: products of a thousand of them stay near 1."""
SPOT_ROWS = 256
"""Rows of a weight whose values are looked at after a sample."""


class LinearPlaces:
    """See Places. arena: of the problem's type, at least one weight long."""

    def __init__(self, arena: Tensor, problem: LinearProblem) -> None:
        p, size = problem, problem.n * problem.k
        self._problem = problem
        self._weights = arena[: arena.numel() // size * size].view(-1, p.n, p.k)
        self.num_places = self._weights.shape[0]
        self._x, self._out = arena.new_empty(p.m, p.k), arena.new_empty(p.m, p.n)
        self._bias = arena.new_empty(p.n) if p.bias else None

    def bind(self, backend: type[Any], parameters: Parameters, executor: Executor) -> Bound:
        made = backend(executor, **parameters)
        packed = [made.prepare(weight, self._bias, self._problem) for weight in self._weights]
        launches = tuple(made.bind(self._x, one, self._out) for one in packed)
        return Bound(
            launches=launches,
            read_bytes=made.read_bytes(packed[0], self._problem.m),
            write_bytes=0,
            kept_bytes=sum(made.kept_bytes(one) for one in packed),
            note=made.note,
        )


class LinearOperands(LinearPlaces):
    """See Operands. arena: random values."""

    flop: int | None = None

    def __init__(self, arena: Tensor, problem: LinearProblem, seed: int) -> None:
        super().__init__(arena, problem)
        self._random = torch.Generator(arena.device).manual_seed(seed)
        bias = None if self._bias is None else self._normal(self._bias)
        self._fresh = [self._normal(torch.empty_like(self._x)) for _ in range(NUM_INPUTS)]
        self._exact = [
            exact_product(self._fresh[which], self._weights[self._place(check)], bias)
            for check, (which, _) in enumerate(CHECKS)
        ]
        self._watched = Watched(weight=self._weights, x=self._x, **({} if bias is None else {"bias": bias}))

    def pose(self, check: int) -> int:
        self._put(self._fresh[CHECKS[check][0]])
        return self._place(check)

    def fault(self, check: int) -> str:
        return first_fault(self._out, self._exact[check])

    def renew(self) -> None:
        self._put(self._normal(torch.empty_like(self._x)))

    def mark(self, place: int, num_calls: int) -> None:
        """What is right hangs on no call before."""

    def spot_fault(self, place: int) -> str:
        """Of rows all over the weight, others each time."""
        stride = max(1, self._problem.n // SPOT_ROWS)
        start = int(torch.randint(stride, (), generator=self._random, device=self._out.device))
        bias = None if self._bias is None else self._bias[start::stride]
        exact = exact_product(self._x, self._weights[place, start::stride], bias)
        return first_fault(self._out[:, start::stride], exact, roundings=SPOT_ROUNDINGS)

    def changed(self) -> str:
        return self._watched.changed()

    def _place(self, check: int) -> int:
        return spread(self.num_places, check)

    def _put(self, x: Tensor) -> None:
        self._x.copy_(x)
        self._watched.accept("x")
        poison(self._out)

    def _normal(self, out: Tensor) -> Tensor:
        return out.normal_(generator=self._random)
