"""The gated MLP: down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.engines.native.ops import Bound
from harness.engines.native.weights import TensorSource
from harness.engines.native.workspace import Products, Rows, Workspace
from harness.specs.parts.mlp import GatedMlp


class MlpLayer:
    """One layer's."""

    def __init__(self, spec: GatedMlp, workspace: Workspace, index: int, source: TensorSource, at: str) -> None:
        self._width, self._workspace, self._index = spec.intermediate_size, workspace, index
        gate_up = {role: f"{at}{spec.name}.{role}_proj" for role in ("gate", "up")}
        self._gate_up = Products.load(source, workspace.fuse, gate_up)
        self._down = Products.load(source, False, {"down": f"{at}{spec.name}.down_proj"})

    def launches(self, rows: Rows, x: torch.Tensor, out: torch.Tensor) -> Iterator[Bound]:
        """x and out are [rows, hidden]."""
        w = self._workspace
        gate_up = w.activation("gate_up", 2 * self._width, rows)
        yield from self._gate_up.bind(w.ops, rows.phase, self._index, x, gate_up)
        gate, up = gate_up.chunk(2, dim=1)
        activated = w.activation("activated", self._width, rows)
        yield Bound("elementwise", "silu_mul", w.elementwise.silu_mul(gate, up, activated))
        yield from self._down.bind(w.ops, rows.phase, self._index, activated, out)
