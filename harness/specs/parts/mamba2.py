"""Mamba-2: a state-space mixer with a state of fixed size instead of a cache (Dao and Gu, 2024).

Per head a matrix H [head_dim, state_size] is decayed by one factor, takes in the outer product of the new input x and
B, and is asked with C: H = a H + (dt x) B^T;  y = H C + D x. The heads of a group share B and C.

The state's shapes are those that vLLM allocates (MambaStateShapeCalculator.mamba2_state_shape).
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from harness.specs.parts.product import Product, Shape
from harness.specs.parts.recurrent import Recurrent


class Mamba2(Recurrent):
    """One input projection (gate, x, B, C, step sizes), a short causal convolution over x, B and C, the recurrence, and
    a gated norm."""

    kind: Literal["mamba2"] = "mamba2"
    num_heads: PositiveInt
    head_dim: PositiveInt
    state_size: PositiveInt
    num_groups: PositiveInt
    bias: bool = False
    """Of the two projections."""
    conv_bias: bool = True
    name: Literal["mixer", "mamba"] = "mamba"
    """The module's name within its layer; Nemotron-H calls every part mixer."""

    flop_per_state_value: ClassVar[int] = 5
    """One for the decay and a multiply-add each for (dt x) B^T and H C. The output's D x is one vector."""

    @property
    def inner_size(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """x, B and C side by side."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def state_values(self) -> int:
        """H of all heads."""
        return self.inner_size * self.state_size

    def products(self, hidden: int) -> list[Product]:
        inputs = self.inner_size + self.conv_channels + self.num_heads
        return [
            Product(f"{self.name}.in_proj", inputs, hidden, self.bias),
            Product(f"{self.name}.out_proj", hidden, self.inner_size, self.bias),
        ]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """All that a checkpoint keeps of it."""
        for product in self.products(hidden):
            yield from product.tensors()
        yield f"{self.name}.conv1d.weight", (self.conv_channels, 1, self.conv_kernel)
        if self.conv_bias:
            yield f"{self.name}.conv1d.bias", (self.conv_channels,)
        yield from ((f"{self.name}.{vector}", (self.num_heads,)) for vector in ("dt_bias", "A_log", "D"))
        yield f"{self.name}.norm.weight", (self.inner_size,)
