"""One value head of the gated delta rule, worked out beside a sample: what its last call is to leave there."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.ab.operands.base import SPOT_ROUNDINGS
from harness.backends.base import DeltaInputs, DeltaState, DeltaWeights
from harness.backends.check import first_fault
from harness.kernel_reference import kernel_reference
from harness.specs.problem import DeltaProblem

MOST = 1e6
"""That an output is held to cancel: of one that does so more nothing is known."""


@dataclass(frozen=True)
class Head:
    """A value head's part of every tensor."""

    value_head: int
    values: slice
    """Of the output and its gates."""
    channels: Tensor
    """Of the convolution: its key head's query and key, its own values."""

    @classmethod
    def of(cls, problem: DeltaProblem, value_head: int, device: torch.device) -> Head:
        """Key heads serve as many value heads each, one after another."""
        p = problem
        key_head, keys = value_head * p.num_key_heads // p.num_value_heads, p.num_key_heads * p.key_head_dim
        values = slice(value_head * p.value_head_dim, (value_head + 1) * p.value_head_dim)
        key = torch.arange(key_head * p.key_head_dim, (key_head + 1) * p.key_head_dim, device=device)
        value = torch.arange(values.start, values.stop, device=device)
        return cls(value_head, values, torch.cat((key, keys + key, 2 * keys + value)))


@dataclass(frozen=True)
class DeltaSpot:
    """What is right for one head's states after the sample, and for its output of one token."""

    head: Head
    token: int
    output: Tensor
    conv: Tensor
    state: Tensor
    cancels: int
    """How many times larger the parts of the output are than it is, in whole numbers: the norm makes a sum that cancels
    as large as any, with the rounding of its parts."""

    @classmethod
    def work_out(
        cls, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, head: Head, token: int, num_calls: int
    ) -> DeltaSpot:
        """From the states as they are before so many calls with these inputs."""
        reference, one = kernel_reference("gated_delta_rule"), slice(head.value_head, head.value_head + 1)
        gates = inputs.z[token, head.values]
        parts = [exact64(part) for part in (inputs.qkv[:, head.channels], inputs.b[:, one], inputs.a[:, one])]
        exact = [exact64(w) for w in (weights.conv[head.channels], weights.a_log[one], weights.dt_bias[one])]
        of_head = reference.Weights(*exact, None, weights.eps)
        found = exact64(state.conv[:, head.channels]), exact64(state.recurrent[one])

        def run(tokens: slice, conv: Any, recurrent: Any) -> Any:
            qkv, b, a = (part[tokens] for part in parts)
            return reference.gated_delta(qkv, None, b, a, of_head, conv, recurrent, 1)

        for _ in range(num_calls - 1):
            found = run(slice(None), *found)[1:]
        out, *found = run(slice(token + 1), *found)
        raw, cancels = out[-1, 0], _cancels(out[-1, 0], found[1][0])
        found = run(slice(token + 1, None), *found)[1:]
        normed = reference.gated_norm(raw, exact64(gates), of_head._replace(norm=exact64(weights.norm)))
        output, conv, recurrent = (
            torch.from_numpy(np.ascontiguousarray(value)).to(gates.device) for value in (normed, *found)
        )
        return cls(head, token, output, conv, recurrent[0], cancels)

    def fault(self, out: Tensor, state: DeltaState, roundings: int) -> str:
        """What is wrong there; roundings: of a whole result."""
        head, allowed = self.head, SPOT_ROUNDINGS * roundings
        found = (
            ("state", state.recurrent[head.value_head], self.state, allowed),
            ("convolution state", state.conv[:, head.channels], self.conv, allowed),
            ("output", out[self.token, head.values], self.output, allowed * self.cancels),
        )
        faults = ((name, first_fault(tensor, exact, out.dtype, some)) for name, tensor, exact, some in found)
        return next((f"{name} of head {head.value_head}: {fault}" for name, fault in faults if fault), "")


def _cancels(output: Any, state: Any) -> int:
    """By what a query of unit length, scaled as the rule scales it, would ask of such a state on average."""
    key_dim, value_dim = state.shape
    expected = float(np.linalg.norm(state)) / (key_dim * value_dim**0.5)
    size = max(float(np.sqrt((output**2).mean())), expected / MOST)
    return ceil(max(1.0, expected / size)) if size else 1


def exact64(tensor: Tensor | None) -> Any:
    """float64, as the reference takes it."""
    assert tensor is not None, "operands have a norm"
    return tensor.double().cpu().numpy()
