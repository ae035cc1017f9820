"""Gated delta rule layers: projections around a state of fixed size, which stays in place from token to token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.backends.base import DeltaInputs, DeltaState, DeltaWeights
from harness.engines.native.memory import empty
from harness.engines.native.ops import Bound
from harness.engines.native.weights import TensorSource
from harness.engines.native.workspace import Products, Rows, Workspace
from harness.specs.parts.gated_delta import GatedDelta


class GatedDeltaKind:
    """All layers of one kind: their states as one allocation."""

    def __init__(self, spec: GatedDelta, num_layers: int, workspace: Workspace) -> None:
        self._spec, self._workspace = spec, workspace
        w, layers = workspace, (num_layers, workspace.batch)
        recurrent = (*layers, spec.num_value_heads, spec.key_head_dim, spec.value_head_dim)
        self._recurrent = iter(empty(recurrent, torch.float32, w.device).zero_())
        self._conv = iter(empty((*layers, spec.conv_kernel - 1, spec.conv_channels), w.dtype, w.device).zero_())

    def layer(self, index: int, source: TensorSource, at: str) -> GatedDeltaLayer:
        """The next layer of this kind; `at`: what its tensors' names begin with."""
        states = zip(next(self._conv), next(self._recurrent), strict=True)
        return GatedDeltaLayer(
            self._spec, self._workspace, index, source, f"{at}linear_attn.", [DeltaState(*s) for s in states]
        )


class GatedDeltaLayer:
    """One layer, with a state for each request."""

    def __init__(
        self, spec: GatedDelta, workspace: Workspace, index: int, source: TensorSource, at: str,
        states: list[DeltaState],
    ) -> None:  # fmt: skip
        self._spec, self._workspace, self._index, self._states = spec, workspace, index, states
        self._widths = {
            "qkv": spec.conv_channels, "z": spec.value_size, "b": spec.num_value_heads, "a": spec.num_value_heads,
        }  # fmt: skip
        modules = {role: f"{at}in_proj_{role}" for role in self._widths}
        self._inputs = Products.load(source, workspace.fuse, modules)
        self._out = Products.load(source, False, {"out": f"{at}out_proj"})
        self._weights = DeltaWeights(
            conv=source.tensor(f"{at}conv1d.weight").flatten(1),
            # In fp32: exp(a_log) is an exponent's factor, where a rounding to bf16 would be one of the whole state.
            a_log=source.tensor(f"{at}A_log", torch.float32),
            dt_bias=source.tensor(f"{at}dt_bias", torch.float32),
            norm=source.tensor(f"{at}norm.weight"),
            eps=workspace.spec.rms_norm_eps,
        )

    def reset(self, request: int) -> None:
        """A request starts from zeros."""
        self._states[request].conv.zero_()
        self._states[request].recurrent.zero_()

    def fill(self, request: int) -> None:
        """A random state."""
        self._states[request].conv.normal_()
        self._states[request].recurrent.normal_()

    def launches(self, rows: Rows, x: torch.Tensor, out: torch.Tensor) -> Iterator[Bound]:
        """x and out are [rows, hidden]."""
        w, widths = self._workspace, list(self._widths.values())
        projected = w.activation("delta_inputs", sum(widths), rows)
        yield from self._inputs.bind(w.ops, rows.phase, self._index, x, projected)
        mixed = w.activation("mixed", self._spec.value_size, rows)
        for lane, request in rows.lanes:
            inputs = DeltaInputs(*torch.split(projected[lane], widths, dim=1))
            state = self._states[request]
            yield w.ops.linear_attention(
                rows.phase, self._index, self._spec, inputs, self._weights, state, mixed[lane], len(rows.lanes)
            )
        yield from self._out.bind(w.ops, rows.phase, self._index, mixed, out)
