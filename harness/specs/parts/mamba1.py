"""Mamba: the first of its kind, with a decay for each value of its state (Gu and Dao, 2023); Jamba's adds three norms.

Per channel d a row h of state_size values: h = exp(dt_d A_d) h + (dt_d x_d) B;  y_d = h C + D_d x_d. All channels
share B and C, and dt comes by way of a low rank.

The state's shapes are those that vLLM allocates (MambaStateShapeCalculator.mamba1_state_shape).
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from harness.specs.parts.product import Product, Shape
from harness.specs.parts.recurrent import Recurrent


class Mamba1(Recurrent):
    """One input projection (x and gate), a short causal convolution over x, projections of its output (dt, B, C), and
    the recurrence."""

    kind: Literal["mamba1"] = "mamba1"
    inner_size: PositiveInt
    state_size: PositiveInt
    dt_rank: PositiveInt
    bias: bool = False
    """Of the projections in and out; the one from dt's low rank always has one."""
    conv_bias: bool = True

    flop_per_state_value: ClassVar[int] = 6
    """One each for dt A and the decay and a multiply-add each for (dt x) B and h C. The exponential is not counted, as
    the softmax's is not."""

    @property
    def conv_channels(self) -> int:
        """x alone."""
        return self.inner_size

    @property
    def state_values(self) -> int:
        """h of all channels."""
        return self.inner_size * self.state_size

    def products(self, hidden: int) -> list[Product]:
        return [
            Product("mamba.in_proj", 2 * self.inner_size, hidden, self.bias),
            Product("mamba.x_proj", self.dt_rank + 2 * self.state_size, self.inner_size),
            Product("mamba.dt_proj", self.inner_size, self.dt_rank, bias=True),
            Product("mamba.out_proj", hidden, self.inner_size, self.bias),
        ]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """All that a checkpoint keeps of it."""
        for product in self.products(hidden):
            yield from product.tensors()
        yield "mamba.conv1d.weight", (self.inner_size, 1, self.conv_kernel)
        if self.conv_bias:
            yield "mamba.conv1d.bias", (self.inner_size,)
        yield "mamba.A_log", (self.inner_size, self.state_size)
        yield "mamba.D", (self.inner_size,)
        yield "mamba.dt_layernorm.weight", (self.dt_rank,)
        yield "mamba.b_layernorm.weight", (self.state_size,)
        yield "mamba.c_layernorm.weight", (self.state_size,)
