"""A mixture of experts: the router's scores choose the few experts that a token goes through.

With one row the products of all experts are bound beforehand like any other, and the router's choice only says which
of them run: the step reads these experts' weights and no others. With more rows each expert takes those that were
routed to it, which differ from call to call, so torch gathers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import linear, silu

from harness.engines.native.ops import Bound
from harness.engines.native.weights import TensorSource
from harness.engines.native.workspace import Products, Rows, Workspace
from harness.specs.parts.mlp import Moe


class MoeLayer:
    """One layer's router and experts."""

    def __init__(self, spec: Moe, workspace: Workspace, index: int, source: TensorSource, at: str) -> None:
        self._spec, self._workspace, self._index = spec, workspace, index
        self._router = Products.load(source, False, {"router": f"{at}{spec.names}.{spec.router}"})
        self._gate_up, self._down = [], []
        for expert in range(spec.num_experts):
            gate, up, down = (f"{at}{p.name}" for p in spec.expert_products(workspace.spec.hidden_size, expert))
            # Always fused: a product of its own for each half would double the launches of every expert.
            self._gate_up.append(source.linear(gate, up))
            self._down.append(source.linear(down))

    def launches(self, rows: Rows, x: torch.Tensor, out: torch.Tensor) -> Iterator[Bound]:
        """x and out are [rows, hidden]."""
        scores = self._workspace.activation("router", self._spec.num_experts, rows)
        yield from self._router.bind(self._workspace.ops, rows.phase, self._index, x, scores)
        if rows.num == 1:
            yield from self._one_row(rows, x, scores, out)
        else:
            yield self._many_rows(rows, x, scores, out)

    def _one_row(self, rows: Rows, x: torch.Tensor, scores: torch.Tensor, out: torch.Tensor) -> Iterator[Bound]:
        w, s = self._workspace, self._spec
        gate_up = w.activation("expert_gate_up", 2 * s.expert.intermediate_size, rows)
        gate, up = gate_up.chunk(2, dim=1)
        activated = w.activation("expert_activated", s.expert.intermediate_size, rows)
        outs = torch.empty(s.experts_per_token, out.shape[1], dtype=out.dtype, device=out.device)
        shares = torch.empty(s.experts_per_token, dtype=torch.float32, device=out.device)
        chosen = list(range(s.experts_per_token))  # distinct from the start: reads of the same one come from a cache

        def route() -> None:
            weights, experts = self._choose(scores)
            shares.copy_(weights[0])
            chosen[:] = experts[0].tolist()

        def combine() -> None:
            out.copy_(shares @ outs.float())

        def pick(runs: list[Bound], slot: int) -> None:
            runs[chosen[slot]].run()

        def bound(role: str, of: torch.Tensor, into: torch.Tensor) -> list[Bound]:
            experts = self._gate_up if role == "expert_gate_up" else self._down
            calls = s.experts_per_token
            return [w.ops.linear(rows.phase, role, self._index, e, of, into, calls) for e in experts]

        yield Bound("elementwise", "route", route)
        up_runs = bound("expert_gate_up", x, gate_up)
        silu_mul = w.elementwise.silu_mul(gate, up, activated)
        for slot in range(s.experts_per_token):
            down_runs = bound("expert_down", activated, outs[slot : slot + 1])
            yield up_runs[0].of(partial(pick, up_runs, slot))
            yield Bound("elementwise", "silu_mul", silu_mul)
            yield down_runs[0].of(partial(pick, down_runs, slot))
        yield Bound("elementwise", "combine", combine)

    def _many_rows(self, rows: Rows, x: torch.Tensor, scores: torch.Tensor, out: torch.Tensor) -> Bound:
        self._workspace.ops.by_torch(rows.phase, "experts", self._index, rows.num)

        def run() -> None:
            weights, experts = self._choose(scores)
            total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
            for expert in torch.unique(experts).tolist():
                row, slot = (experts == expert).nonzero(as_tuple=True)
                gate, up = linear(x[row], self._gate_up[expert].weight).chunk(2, dim=1)
                result = linear(silu(gate) * up, self._down[expert].weight)
                total.index_add_(0, row, result.float() * weights[row, slot, None])
            out.copy_(total)

        return Bound("linear", "experts", run)

    def _choose(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(weights float32, experts), both [rows, experts_per_token]."""
        shares = torch.softmax(scores.float(), dim=-1)
        weights, experts = torch.topk(shares, self._spec.experts_per_token, dim=-1)
        return weights / weights.sum(-1, keepdim=True) if self._spec.normalized else weights, experts
