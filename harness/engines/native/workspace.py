"""What the layers of a model share while a step runs: who its rows belong to, and where activations lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from harness.engines.native.elementwise.base import Elementwise, Norm
from harness.engines.native.ops import Bound, OpTable, Phase
from harness.engines.native.weights import TORCH_DTYPES, Linear, TensorSource
from harness.specs.model import ModelSpec


@dataclass(frozen=True)
class Rows:
    """The new tokens of a step: each request's are neighbours."""

    phase: Phase
    lanes: tuple[tuple[slice, int], ...]
    """(rows, request): one row each in a decode step, all rows in a chunk of one request's prompt."""

    @classmethod
    def of_decode(cls, batch: int) -> Rows:
        return cls("decode", tuple((slice(index, index + 1), index) for index in range(batch)))

    @classmethod
    def of_prompt(cls, num_tokens: int, request: int) -> Rows:
        return cls("prefill", ((slice(0, num_tokens), request),))

    @property
    def num(self) -> int:
        return sum(rows.stop - rows.start for rows, _ in self.lanes)

    @property
    def advance(self) -> int:
        """Positions that each request goes on by."""
        return self.num // len(self.lanes)

    @property
    def last(self) -> slice:
        """The rows whose next token is asked for: the last of each request."""
        return slice(self.num - len(self.lanes), self.num)


@dataclass
class Workspace:
    """Shared by all layers of a decoder; activations are allocated once and taken by name."""

    spec: ModelSpec
    ops: OpTable
    elementwise: Elementwise
    device: torch.device
    batch: int
    """Requests that are decoded together, each with a cache of its own."""
    max_context: int
    max_rows: int
    """Tokens of the largest step."""
    fuse: bool
    """Products of one input as one: fewer, larger reads."""
    context: torch.Tensor
    """int64 [1]: positions that every request has taken in; read and moved on by the launches."""
    _activations: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.ops.dtype]

    def activation(self, name: str, width: int, rows: Rows) -> torch.Tensor:
        """[rows, width]: the same memory for the same name and width in every layer and step."""
        if (name, width) not in self._activations:
            self._activations[name, width] = torch.empty(self.max_rows, width, dtype=self.dtype, device=self.device)
        return self._activations[name, width][: rows.num]

    def norm(self, source: TensorSource, name: str) -> Norm:
        """A norm as the model's layers have them."""
        return Norm(source.tensor(name), self.spec.rms_norm_eps, self.spec.centered_norms)


@dataclass(frozen=True)
class Products:
    """Products of one input: one fused product, or one a role."""

    linears: dict[str, Linear]
    """By role, in the order of their columns."""

    @classmethod
    def load(cls, source: TensorSource, fuse: bool, modules: dict[str, str]) -> Products:
        """`modules`: the checkpoint's name of each role. The fused product's role is that of all together."""
        if fuse:
            return cls({fused_role(tuple(modules)): source.linear(*modules.values())})
        return cls({role: source.linear(module) for role, module in modules.items()})

    def bind(self, ops: OpTable, phase: Phase, layer: int, x: torch.Tensor, out: torch.Tensor) -> Sequence[Bound]:
        """Into the columns of out [m, all n]."""
        outs = torch.split(out, [linear.weight.shape[0] for linear in self.linears.values()], dim=1)
        named = zip(self.linears.items(), outs, strict=True)
        return [ops.linear(phase, role, layer, linear, x, part) for (role, linear), part in named]


def fused_role(roles: tuple[str, ...]) -> str:
    """qkv for q, k and v; gate_up for gate and up."""
    return ("" if all(len(role) == 1 for role in roles) else "_").join(roles)
