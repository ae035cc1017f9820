"""A matrix product with a weight: what parts are mostly made of."""

from collections.abc import Iterator
from typing import NamedTuple

Shape = tuple[int, ...]


class Product(NamedTuple):
    """x [m, k] times weight [n, k], transposed, plus bias [n]."""

    name: str
    """The module's name within its layer: the checkpoint has `<name>.weight` and, with a bias, `<name>.bias`."""
    n: int
    k: int
    bias: bool = False

    def tensors(self) -> Iterator[tuple[str, Shape]]:
        yield f"{self.name}.weight", (self.n, self.k)
        if self.bias:
            yield f"{self.name}.bias", (self.n,)
