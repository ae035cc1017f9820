"""One of vLLM's gated delta layers, and its decode step by one of our backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.backends.base import DeltaInputs, DeltaState, DeltaWeights, LinearAttentionBackend
from harness.backends.launch import KernelLaunch
from harness.errors import UnavailableError
from harness.specs.problem import DeltaProblem


@dataclass(frozen=True)
class Tokens:
    """One new token of each request of a step: vLLM's own tensors. Rows of the first three may have a stride."""

    qkv: Tensor
    """[requests, conv_channels]"""
    b: Tensor
    """[requests, num_value_heads]"""
    a: Tensor
    """As b."""
    out: Tensor
    """[requests, num_value_heads, value_head_dim]: what the gated norm takes."""
    slots: list[int]
    """Of each request's state."""
    conv: Tensor
    """[slots, conv_kernel - 1, conv_channels]"""
    recurrent: Tensor
    """float32 [slots, num_value_heads, key_head_dim, value_head_dim]"""


Step = Callable[[Tokens], None]
Key = tuple[int, int]
"""Variant, requests of a decode step (0: a prompt is among them)."""


@dataclass(frozen=True)
class Delta:
    """A layer whose rule a table lists."""

    name: str
    problem: DeltaProblem
    """One token of one request."""
    weights: DeltaWeights
    """As loaded; without a norm, which vLLM does behind its op."""
    packed_by_vllm: bool
    """vLLM's own path reads the convolution's weight in another layout."""
    unfit: str | None
    """Why no launch of ours can take what vLLM keeps of a request."""
    kept_bytes: int = 0
    paths: dict[Key, tuple[int, Step | None]] = field(default_factory=dict)
    """(counter, ours; None: vLLM's own)"""

    @property
    def shape(self) -> str:
        p = self.problem
        return f"{p.num_value_heads}/{p.num_key_heads} heads x {p.key_head_dim} x {p.value_head_dim}"


def bound_step(backend: LinearAttentionBackend, delta: Delta) -> Step:
    """One launch a request, on vLLM's own state; what it was bound to here only has the shapes."""
    p, new = delta.problem, delta.weights.conv.new_empty
    qkv, b, a = new((1, p.conv_channels)), new((1, p.num_value_heads)), new((1, p.num_value_heads))
    out = new((1, p.num_value_heads * p.value_head_dim))
    recurrent = new((p.num_value_heads, p.key_head_dim, p.value_head_dim), dtype=torch.float32)
    state = DeltaState(new((p.conv_kernel - 1, p.conv_channels)), recurrent)
    launch = backend.bind(DeltaInputs(qkv, qkv, b, a), delta.weights, state, out, p)
    move = launch.mover(qkv, b, a, out, state.conv, recurrent) if isinstance(launch, KernelLaunch) else None

    def run(tokens: Tokens) -> None:
        t = tokens
        if t.qkv.dtype is not delta.weights.conv.dtype:
            raise UnavailableError(f"{delta.name} got {t.qkv.dtype}", f"its weights are {delta.weights.conv.dtype}")
        for request, slot in enumerate(t.slots):
            if move is None:
                _bind_at(backend, delta, t, request, slot)()
            else:
                move(*(_address(rows, request) for rows in (t.qkv, t.b, t.a, t.out)),
                     _address(t.conv, slot), _address(t.recurrent, slot))  # fmt: skip

    return run


def _address(tensor: Tensor, index: int) -> int:
    """Of tensor[index], without making it."""
    return tensor.data_ptr() + index * tensor.stride(0) * tensor.element_size()


def _bind_at(backend: LinearAttentionBackend, delta: Delta, t: Tokens, request: int, slot: int) -> Any:
    qkv, b, a = (rows[request : request + 1] for rows in (t.qkv, t.b, t.a))
    state = DeltaState(t.conv[slot], t.recurrent[slot])
    out = t.out[request].view(1, -1)
    return backend.bind(DeltaInputs(qkv, qkv, b, a), delta.weights, state, out, delta.problem)
