"""One of vLLM's linear layers, and its product by one of our backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from harness.backends.base import Launch, LinearBackend
from harness.backends.weights import dtype_name
from harness.errors import UnavailableError
from harness.specs.problem import LinearProblem
from harness.vllm_plugin.moves import mover

Product = Callable[[Tensor, "Tensor | None"], Tensor]
"""(x [..., k], bias as vLLM passes it) -> [..., n]."""
Key = tuple[int, int, bool]
"""Variant, rows (one more than the largest stands for all above it), whether vLLM passes no bias."""


class LinearPath(NamedTuple):
    """How one variant multiplies so many rows."""

    place: int
    """Of its counter."""
    run: Product
    counts_itself: bool
    """Its kernel does, on the card."""


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
    paths: dict[Key, LinearPath] = field(default_factory=dict)

    @property
    def k(self) -> int:
        return self.weight.shape[1]

    def problem(self, m: int) -> LinearProblem:
        return LinearProblem(m=m, n=self.n, k=self.k, dtype=dtype_name(self.weight), bias=self.bias is not None)


def bound_product(backend: LinearBackend, packed: Any, linear: Linear, m: int, calls: Tensor | None) -> Product:
    """A backend's product into a new tensor, which lies elsewhere at each call, as x does. calls: what its kernel adds
    one to at each launch."""
    (rows, k), n = linear.weight.shape, linear.n

    def bind(x: Tensor, out: Tensor) -> Launch:
        return backend.bind(x, packed, out) if calls is None else backend.bind_counted(x, packed, out, calls)

    x, out = linear.weight.new_empty((m, k)), linear.weight.new_empty((m, rows))[:, :n]
    move = mover(bind(x, out), x, out)

    def run(x: Tensor, _: Tensor | None) -> Tensor:
        if x.dtype is not linear.weight.dtype:
            raise UnavailableError(f"{linear.name} got {x.dtype}", f"its weight is {linear.weight.dtype}")
        flat = x if x.dim() == 2 and x.is_contiguous() else x.reshape(m, k).contiguous()
        whole = x.new_empty((m, rows))
        if n < rows:
            whole[:, n:] = 0
        if move is None:
            bind(flat, whole[:, :n])()
        else:
            move(flat, whole)
        return whole if flat is x else whole.view(*x.shape[:-1], rows)

    return run
