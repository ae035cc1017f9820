"""Resolves every linear and attention call through the backend registries, and remembers what was chosen.

What RAN is recorded for each layer and shape: a backend that was asked for and can't do a problem is replaced by one
that can, and the record says so with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from harness.backends.base import (
    AttentionBackend,
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    Executor,
    Launch,
    LinearAttentionBackend,
    LinearBackend,
)
from harness.backends.registry import (
    AUTO,
    Choice,
    Registry,
    attention_backends,
    linear_attention_backends,
    linear_backends,
)
from harness.engines.native.weights import Linear
from harness.specs.ab import Op
from harness.specs.engine import OpChoice, layer_ranges
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem
from harness.specs.run import NativeEngine
from harness.specs.selection import Problem, SelectionTable

_Key = tuple[str, str, tuple[tuple[str, int | str], ...]]
"""Operation, backend, parameters."""
Phase = Literal["decode", "prefill"]


@dataclass(frozen=True)
class Bound:
    """One launch of a step: what it is, and what it moves of weights, cache and state at a context."""

    kind: str
    """linear, attention, linear-attention, elementwise or sampling."""
    role: str
    run: Launch
    read_bytes: Callable[[int], int] = lambda context: 0
    write_bytes: int = 0
    """Of a recurrent state; a position's place in the cache is small beside what is read."""
    weights: Linear | None = None
    """What a linear multiplies with."""

    def of(self, run: Launch) -> Bound:
        """The same, run by something that chooses among its like."""
        return replace(self, run=run)


@dataclass
class OpTable:
    """Backends of one engine: instances by name, prepared weights, and the log of choices."""

    executor: Executor
    config: NativeEngine
    dtype: str
    table: SelectionTable | None = None
    prepare_s: float = 0.0
    _instances: dict[_Key, Any] = field(default_factory=dict)
    _packed: dict[tuple[int, int], Any] = field(default_factory=dict)
    _chosen: dict[OpChoice, dict[int, int]] = field(default_factory=dict)
    """Calls of one step, by layer."""

    def linear(
        self, phase: Phase, role: str, layer: int, weights: Linear, x: torch.Tensor, out: torch.Tensor, calls: int = 1
    ) -> Bound:
        """out = x @ weight^T + bias by the backend of this phase and shape. layer -1: outside the layers.

        calls: how often a step makes it, where it stands for a few of many like it.
        """
        choice, read, launch = self.bind_linear(phase, weights, x, out)
        n, k = weights.weight.shape
        shape = f"{'m' if phase == 'prefill' else x.shape[0]}x{n}x{k}"
        batch = 1 if phase == "prefill" else x.shape[0]
        row = self._row("linear", phase, role, shape, choice, read, batch)
        note = getattr(self._instance("linear", choice), "note", "")
        self._remember(row.model_copy(update={"note": note}), layer, calls)
        return Bound("linear", role, launch, lambda context: read, weights=weights)

    def by_torch(self, phase: Phase, role: str, layer: int, num_rows: int) -> None:
        """Note products that the engine itself does by torch, since their rows differ from call to call."""
        row = OpChoice(
            op="linear", role=role, shape="-", backend="torch", contest_legal=True, layers="", phase=phase,
            batch=1 if phase == "prefill" else num_rows,
        )  # fmt: skip
        self._remember(row, layer, 1)

    def bind_linear(
        self, phase: Phase, weights: Linear, x: torch.Tensor, out: torch.Tensor
    ) -> tuple[Choice, int, Launch]:
        """(backend chosen, bytes it reads, launch), not part of any step's record."""
        (n, k), m = weights.weight.shape, x.shape[0]
        problem = LinearProblem(m=m, n=n, k=k, dtype=self.dtype, bias=weights.bias is not None)
        wanted = self.config.linear if phase == "decode" else self.config.prefill_linear
        choice = self._choose("linear", linear_backends, wanted, problem)
        backend: LinearBackend = self._instance("linear", choice)
        packed = self._prepared(backend, weights, problem)
        return choice, backend.read_bytes(packed, m), backend.bind(x, packed, out)

    def attention(
        self, phase: Phase, layer: int, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        context: torch.Tensor, out: torch.Tensor, batch: int = 1,
    ) -> Bound:  # fmt: skip
        """Causal attention of the new queries over the cache by the backend of this phase.

        batch: requests of the step, of which this is one.
        """
        (m, heads, head_dim), (kv_heads, max_context, _) = q.shape, k_cache.shape
        problem = AttentionProblem(
            m=m, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, max_context=max_context, dtype=self.dtype
        )
        wanted = self.config.attention if phase == "decode" else self.config.prefill_attention
        fitting = "torch-sdpa" if phase == "decode" and not self._linears_use_pool(batch) else AUTO
        choice = self._choose("attention", attention_backends, wanted, problem, fitting)
        backend: AttentionBackend = self._instance("attention", choice)
        shape = f"{heads}/{kv_heads} heads x {head_dim}"
        self._remember(self._row("attention", phase, phase, shape, choice, None, batch), layer, 1)
        launch = backend.bind(q, k_cache, v_cache, context, out, problem)
        return Bound("attention", phase, launch, lambda filled: backend.read_bytes(problem, filled))

    def linear_attention(
        self, phase: Phase, layer: int, spec: GatedDelta, inputs: DeltaInputs, weights: DeltaWeights,
        state: DeltaState, out: torch.Tensor, batch: int = 1,
    ) -> Bound:  # fmt: skip
        """The gated delta rule over the new tokens by the backend of this phase; `batch` as in attention."""
        problem = DeltaProblem(
            m=out.shape[0], num_key_heads=spec.num_key_heads, num_value_heads=spec.num_value_heads,
            key_head_dim=spec.key_head_dim, value_head_dim=spec.value_head_dim, conv_kernel=spec.conv_kernel,
            dtype=self.dtype,
        )  # fmt: skip
        wanted = self.config.linear_attention if phase == "decode" else self.config.prefill_linear_attention
        fitting = "torch-recurrent" if phase == "decode" and not self._linears_use_pool(batch) else AUTO
        choice = self._choose("linear-attention", linear_attention_backends, wanted, problem, fitting)
        backend: LinearAttentionBackend = self._instance("linear-attention", choice)
        shape = f"{spec.num_value_heads}/{spec.num_key_heads} heads x {spec.key_head_dim} x {spec.value_head_dim}"
        self._remember(self._row("linear-attention", phase, phase, shape, choice, None, batch), layer, 1)
        read, written = backend.read_bytes(problem), state.recurrent.nbytes + state.conv.nbytes
        launch = backend.bind(inputs, weights, state, out, problem)
        return Bound("linear-attention", phase, launch, lambda filled: read, written)

    def _choose(
        self, op: Op, registry: Registry[Any], wanted: str, problem: Problem, fitting: str = AUTO
    ) -> Choice:  # fmt: skip
        """By name; for `auto` by the table, where there is one, else what fits the products of the same step."""
        device = self.executor.device
        if wanted != AUTO:
            return registry.choose(wanted, problem, device)
        if self.table is None:
            return registry.choose(fitting, problem, device)
        return registry.choose_selected(self.table.find(op, problem), fitting, problem, device)

    def choices(self) -> tuple[OpChoice, ...]:
        """What ran, one row a (phase, role, shape, backend), with its layers as ranges."""
        return tuple(
            choice.model_copy(update={"layers": layer_ranges(layers), "num_calls": sum(layers.values())})
            for choice, layers in self._chosen.items()
        )

    def _linears_use_pool(self, batch: int) -> bool:
        """Whether the products of this batch's decode step run on our pool and not on torch's threads.

        What is chosen by `auto` follows: two kinds of threads on the same cores would take turns spinning.
        """
        steps = (row for row in self._chosen if row.phase == "decode" and row.batch == batch)
        names = {row.backend for row in steps if row.op == "linear"}
        return all(linear_backends.get(name).uses_pool for name in names)

    def _instance(self, op: str, choice: Choice) -> Any:
        key = (op, choice.backend.name, tuple(choice.parameters.items()))
        if key not in self._instances:
            self._instances[key] = choice.backend(self.executor, **choice.parameters)
        return self._instances[key]

    def _prepared(self, backend: LinearBackend, weights: Linear, problem: LinearProblem) -> Any:
        key = (weights.weight.data_ptr(), id(backend))  # instances live as long as this table
        if key not in self._packed:
            started = time.perf_counter()
            self._packed[key] = backend.prepare(weights.weight, weights.bias, problem)
            self.prepare_s += time.perf_counter() - started
        return self._packed[key]

    @staticmethod
    def _row(
        op: str, phase: Phase, role: str, shape: str, choice: Choice, read_bytes: int | None, batch: int = 1
    ) -> OpChoice:
        return OpChoice(
            op=op, role=role, shape=shape, backend=choice.backend.name, contest_legal=choice.backend.contest_legal,
            layers="", phase=phase, batch=batch, read_bytes=read_bytes if phase == "decode" else None,
            parameters=tuple(choice.parameters.items()), selected=choice.selected,
            fallback_from=choice.fallback_from, fallback_reason=choice.fallback_reason,
        )  # fmt: skip

    def _remember(self, row: OpChoice, layer: int, calls: int) -> None:
        self._chosen.setdefault(row, {})[layer] = calls
