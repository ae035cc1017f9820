"""One of vLLM's linear layers, and its product by one of our backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from harness.backends.base import LinearBackend
from harness.backends.launch import KernelLaunch
from harness.backends.weights import dtype_name
from harness.errors import UnavailableError
from harness.specs.problem import LinearProblem

Product = Callable[[Tensor, "Tensor | None"], Tensor]
"""(x [..., k], bias as vLLM passes it) -> [..., n]."""
Key = tuple[int, int, bool]
"""Variant, rows (one more than the largest stands for all above it), whether vLLM passes no bias."""


@dataclass(frozen=True)
class Linear:
    """A layer whose shape a table lists; tensors as they were loaded."""

    name: str
    weight: Tensor
    """[rows, k]: a head's last rows are padding."""
    bias: Tensor | None
    n: int
    """Rows that count."""
    stock: Product
    packed_by_vllm: bool
    """vLLM's own path reads a copy in another layout."""
    kept_bytes: int
    """Of the original, where vLLM alone would have let it go."""
    largest: int
    """Rows of x that a table lists at most."""
    hashes: Mapping[str, str]
    """Before vLLM processed them; none outside contests."""
    paths: dict[Key, tuple[int, Product]] = field(default_factory=dict)
    """(counter, product)"""

    @property
    def k(self) -> int:
        return self.weight.shape[1]

    def problem(self, m: int) -> LinearProblem:
        return LinearProblem(m=m, n=self.n, k=self.k, dtype=dtype_name(self.weight), bias=self.bias is not None)


def bound_product(backend: LinearBackend, packed: Any, linear: Linear, m: int) -> Product:
    """A backend's product into a new tensor, which lies elsewhere at each call, as x does."""
    (rows, k), n = linear.weight.shape, linear.n
    x, out = linear.weight.new_empty((m, k)), linear.weight.new_empty((m, rows))[:, :n]
    launch = backend.bind(x, packed, out)
    move = launch.mover(x, out) if isinstance(launch, KernelLaunch) else None

    def run(x: Tensor, _: Tensor | None) -> Tensor:
        if x.dtype is not linear.weight.dtype:
            raise UnavailableError(f"{linear.name} got {x.dtype}", f"its weight is {linear.weight.dtype}")
        flat = x if x.dim() == 2 and x.is_contiguous() else x.reshape(m, k).contiguous()
        whole = x.new_empty((m, rows))
        if n < rows:
            whole[:, n:] = 0
        if move is None:
            backend.bind(flat, packed, whole[:, :n])()
        else:
            move(flat.data_ptr(), whole.data_ptr())
        return whole if flat is x else whole.view(*x.shape[:-1], rows)

    return run
