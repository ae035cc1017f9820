"""Resolves every linear and attention call through the backend registries, and remembers what was chosen.

What RAN is recorded for each layer and shape: a backend that was asked for and can't do a problem is replaced by one
that can, and the record says so with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from harness.backends.base import AttentionBackend, Executor, Launch, LinearBackend
from harness.backends.registry import AUTO, Choice, choose_attention, choose_linear, linear_backends
from harness.engines.native.weights import Linear
from harness.specs.engine import OpChoice
from harness.specs.problem import AttentionProblem, LinearProblem
from harness.specs.run import NativeEngine

Phase = Literal["decode", "prefill"]


@dataclass(frozen=True)
class Bound:
    """One launch of a step: what it is, and what it reads of weights and cache at a context."""

    kind: str
    """linear, attention, elementwise or sampling."""
    role: str
    run: Launch
    read_bytes: Callable[[int], int] = lambda context: 0


@dataclass
class OpTable:
    """Backends of one engine: instances by name, prepared weights, and the log of choices."""

    executor: Executor
    config: NativeEngine
    dtype: str
    prepare_s: float = 0.0
    _instances: dict[tuple[str, str], Any] = field(default_factory=dict)
    _packed: dict[tuple[int, str], Any] = field(default_factory=dict)
    _chosen: dict[OpChoice, set[int]] = field(default_factory=dict)

    def linear(self, phase: Phase, role: str, layer: int, weights: Linear, x: torch.Tensor, out: torch.Tensor) -> Bound:
        """out = x @ weight^T + bias by the backend of this phase and shape. layer -1: outside the layers."""
        choice, read, launch = self.bind_linear(phase, weights, x, out)
        n, k = weights.weight.shape
        self._remember("linear", phase, role, layer, f"{'m' if phase == 'prefill' else 1}x{n}x{k}", choice, read)
        return Bound("linear", role, launch, lambda context: read)

    def bind_linear(
        self, phase: Phase, weights: Linear, x: torch.Tensor, out: torch.Tensor
    ) -> tuple[Choice, int, Launch]:
        """(backend chosen, bytes it reads, launch), not part of any step's record."""
        (n, k), m = weights.weight.shape, x.shape[0]
        problem = LinearProblem(m=m, n=n, k=k, dtype=self.dtype, bias=weights.bias is not None)
        wanted = self.config.linear if phase == "decode" else self.config.prefill_linear
        choice = choose_linear(wanted, problem, self.executor.device)
        backend: LinearBackend = self._instance("linear", choice)
        packed = self._prepared(backend, weights, problem)
        return choice, backend.read_bytes(packed, m), backend.bind(x, packed, out)

    def attention(
        self, phase: Phase, layer: int, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        context: torch.Tensor, out: torch.Tensor,
    ) -> Bound:  # fmt: skip
        """Causal attention of the new queries over the cache by the backend of this phase."""
        (m, heads, head_dim), (kv_heads, max_context, _) = q.shape, k_cache.shape
        problem = AttentionProblem(
            m=m, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, max_context=max_context, dtype=self.dtype
        )
        wanted = self.config.attention if phase == "decode" else self.config.prefill_attention
        if wanted == AUTO and phase == "decode" and not self._linears_use_pool():
            wanted = "torch-sdpa"  # two kinds of threads on the same cores would take turns spinning
        choice = choose_attention(wanted, problem, self.executor.device)
        backend: AttentionBackend = self._instance("attention", choice)
        shape = f"{heads}/{kv_heads} heads x {head_dim}"
        self._remember("attention", phase, phase, layer, shape, choice, None)
        launch = backend.bind(q, k_cache, v_cache, context, out, problem)
        return Bound("attention", phase, launch, lambda filled: backend.read_bytes(problem, filled))

    def choices(self) -> tuple[OpChoice, ...]:
        """What ran, one row a (phase, role, shape, backend), with its layers as ranges."""
        return tuple(
            choice.model_copy(update={"layers": ranges(layers), "num_calls": len(layers)})
            for choice, layers in self._chosen.items()
        )

    def _linears_use_pool(self) -> bool:
        """Whether the decode step's products run on our pool and not on torch's threads."""
        names = {row.backend for row in self._chosen if row.op == "linear" and row.phase == "decode"}
        return all(getattr(linear_backends.get(name), "uses_pool", False) for name in names)

    def _instance(self, op: str, choice: Choice) -> Any:
        key = (op, choice.backend.name)
        if key not in self._instances:
            self._instances[key] = choice.backend(self.executor)
        return self._instances[key]

    def _prepared(self, backend: LinearBackend, weights: Linear, problem: LinearProblem) -> Any:
        key = (weights.weight.data_ptr(), backend.name)
        if key not in self._packed:
            started = time.perf_counter()
            self._packed[key] = backend.prepare(weights.weight, weights.bias, problem)
            self.prepare_s += time.perf_counter() - started
        return self._packed[key]

    def _remember(
        self, op: str, phase: Phase, role: str, layer: int, shape: str, choice: Choice, read_bytes: int | None
    ) -> None:
        row = OpChoice(
            op=op, role=role, shape=shape, backend=choice.backend.name, contest_legal=choice.backend.contest_legal,
            layers="", phase=phase, read_bytes=read_bytes if phase == "decode" else None,
            fallback_from=choice.fallback_from, fallback_reason=choice.fallback_reason,
        )  # fmt: skip
        self._chosen.setdefault(row, set()).add(layer)


def ranges(numbers: Iterable[int]) -> str:
    """0-27 for consecutive layers, commas between ranges; `model` for what stands outside the layers."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join("model" if a < 0 else str(a) if a == b else f"{a}-{b}" for a, b in parts)
