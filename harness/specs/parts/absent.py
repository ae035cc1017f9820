"""Parts that a layer does without: Nemotron-H's layers have a mixer or an MLP, not both."""

from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar, Literal

from harness.specs.base import Frozen
from harness.specs.parts.product import Product, Shape
from harness.specs.parts.recurrent import NoCache


class NoMixer(NoCache):
    """Positions do not look at each other."""

    kind: Literal["no-mixer"] = "no-mixer"
    state_flop: ClassVar[int] = 0

    def state_bytes(self, value_bytes: int) -> int:
        """None."""
        return 0

    def products(self, hidden: int) -> list[Product]:
        return []

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        yield from ()


class NoMlp(Frozen):
    """The mixer's output is the layer's."""

    kind: Literal["no-mlp"] = "no-mlp"

    def products(self, hidden: int) -> list[Product]:
        return []

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        yield from ()

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of the layer that one token reads: all."""
        return Fraction(1)
