"""The gated delta rule: states of many layers, which every call changes in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.ab.operands.base import CHECKS, NUM_INPUTS, Bound, Watched, fill_places, poison, spread
from harness.ab.operands.delta_spot import DeltaSpot, Head, exact64
from harness.backends.base import DeltaInputs, DeltaState, DeltaWeights, Executor
from harness.backends.check import first_fault
from harness.kernel_reference import kernel_reference
from harness.specs.problem import DeltaProblem, Parameters

EPS = 1e-6
NEAR_ONE = 0.25
ROUNDINGS = 4
"""Models round what comes out of the convolution, of the rule, of the norm and of the gate. A chunk's tokens build on
each other: twice as many."""


class DeltaPlaces:
    """See Places. arena: float32, room for at least one layer's recurrent state."""

    def __init__(self, arena: Tensor, problem: DeltaProblem, dtype: torch.dtype) -> None:
        p = self._problem = problem
        shape = (-1, p.num_value_heads, p.key_head_dim, p.value_head_dim)
        self._states = arena[: arena.numel() // p.state_values * p.state_values].view(shape)
        self.num_places = self._states.shape[0]
        new = arena.new_empty
        self._convs = new(self.num_places, p.conv_kernel - 1, p.conv_channels, dtype=dtype)
        value_size = p.num_value_heads * p.value_head_dim
        self._widths = [p.conv_channels, value_size, p.num_value_heads, p.num_value_heads]
        self._inputs = new(p.m, sum(self._widths), dtype=dtype)
        self._out = new(p.m, value_size, dtype=dtype)
        self._norm = new(p.value_head_dim, dtype=dtype)
        self._weights = DeltaWeights(
            conv=new(p.conv_channels, p.conv_kernel, dtype=dtype), a_log=new(p.num_value_heads),
            dt_bias=new(p.num_value_heads), norm=self._norm, eps=EPS,
        )  # fmt: skip

    def bind(self, backend: type[Any], parameters: Parameters, executor: Executor) -> Bound:
        made = backend(executor, **parameters)
        inputs = DeltaInputs(*torch.split(self._inputs, self._widths, dim=1))
        launches = [
            made.bind(inputs, self._weights, DeltaState(conv, state), self._out, self._problem)
            for conv, state in zip(self._convs, self._states, strict=True)
        ]
        written = self._states[0].nbytes + self._convs[0].nbytes
        return Bound(tuple(launches), made.read_bytes(self._problem), written, kept_bytes=0)


class DeltaOperands(DeltaPlaces):
    """See Operands."""

    flop: int | None = None

    def __init__(self, arena: Tensor, problem: DeltaProblem, dtype: torch.dtype, seed: int) -> None:
        super().__init__(arena, problem, dtype)
        self._roundings = ROUNDINGS * (1 if problem.m == 1 else 2)
        self._random = torch.Generator(arena.device).manual_seed(seed)
        self._fill_weights()
        for places in (self._states, self._convs):
            fill_places(places, self._random)
        fresh = [self._random_inputs() for _ in range(NUM_INPUTS)]
        self._checks = [self._check(index, fresh[which]) for index, (which, _) in enumerate(CHECKS)]
        w = self._weights
        self._watched = Watched(inputs=self._inputs, conv=w.conv, a_log=w.a_log, dt_bias=w.dt_bias, norm=self._norm)

    def pose(self, check: int) -> int:
        place = spread(self.num_places, check)
        inputs, conv, state, _ = self._checks[check]
        self._convs[place].copy_(conv)
        self._states[place].copy_(state)
        self._put(inputs)
        return place

    def fault(self, check: int) -> str:
        """Of the output, of the state and of the convolution's state."""
        place, (*_, exact) = spread(self.num_places, check), self._checks[check]
        found = {"output": self._out, "convolution state": self._convs[place], "state": self._states[place]}
        faults = (
            (name, first_fault(tensor, wanted.view(tensor.shape), self._out.dtype, self._roundings))
            for (name, tensor), wanted in zip(found.items(), exact, strict=True)
        )
        return next((f"{name}: {fault}" for name, fault in faults if fault), "")

    def renew(self) -> None:
        self._put(self._random_inputs())

    def mark(self, place: int, num_calls: int) -> None:
        """One head there has fresh states: what all calls before left hangs on whoever made them. It is too small a
        part of a place to keep a cache warm for the call."""
        p, state = self._problem, DeltaState(self._convs[place], self._states[place])
        number, token = (
            int(torch.randint(count, (), generator=self._random, device=self._out.device))
            for count in (p.num_value_heads, p.m)
        )
        head = Head.of(p, number, self._out.device)
        state.recurrent[number].normal_(generator=self._random)
        state.conv[:, head.channels] = state.conv[:, head.channels].normal_(generator=self._random)
        inputs = DeltaInputs(*torch.split(self._inputs, self._widths, dim=1))
        self._spot = DeltaSpot.work_out(inputs, self._weights, state, head, token, num_calls)

    def spot_fault(self, place: int) -> str:
        """Of one head, another each time: its states, and its output of one token."""
        state = DeltaState(self._convs[place], self._states[place])
        return self._spot.fault(self._out, state, self._roundings)

    def changed(self) -> str:
        return self._watched.changed()

    def _put(self, inputs: Tensor) -> None:
        self._inputs.copy_(inputs)
        self._watched.accept("inputs")
        poison(self._out)

    def _random_inputs(self) -> Tensor:
        """Normal; gates near 1, so that no gate makes a rounding before it large beside the mean output."""
        inputs = torch.empty_like(self._inputs).normal_(generator=self._random)
        _, gates, _, _ = torch.split(inputs, self._widths, dim=1)
        gates.mul_(NEAR_ONE).add_(1)
        return inputs

    def _fill_weights(self) -> None:
        w = self._weights
        w.conv.normal_(generator=self._random)
        w.a_log.uniform_(-1, 1, generator=self._random)
        w.dt_bias.normal_(generator=self._random)
        self._norm.normal_(1, NEAR_ONE, generator=self._random)

    def _check(self, index: int, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """(inputs, convolution state, state, what the reference makes of them: output and both states)."""
        place, reference = spread(self.num_places, index), kernel_reference("gated_delta_rule")
        conv, state = self._convs[place].clone(), self._states[place].clone()
        w = self._weights
        weights = reference.Weights(*map(exact64, (w.conv, w.a_log, w.dt_bias, self._norm)), w.eps)
        parts = [exact64(part) for part in torch.split(inputs, self._widths, dim=1)]
        results = reference.gated_delta(*parts, weights, exact64(conv), exact64(state), self._problem.num_key_heads)
        return inputs, conv, state, tuple(torch.from_numpy(result).to(inputs.device) for result in results)
