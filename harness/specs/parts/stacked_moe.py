"""A mixture whose experts lie in one tensor each for all of them (gpt-oss)."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from pydantic import PositiveInt

from harness.specs.parts.mlp import Routed
from harness.specs.parts.product import Product, Shape


class StackedMoe(Routed):
    """Router and experts with biases; gate and up of an expert are one product.

    Checkpoints may keep a stack in 4-bit blocks with a scale each (`gate_up_proj_blocks`, `gate_up_proj_scales`).
    """

    kind: Literal["stacked-moe"] = "stacked-moe"
    intermediate_size: PositiveInt

    def products(self, hidden: int) -> list[Product]:
        """Those that one token goes through; which experts is not known, so they are called expert 0, 1, ..."""
        experts = [
            product
            for index in range(self.experts_per_token)
            for product in (
                Product(f"mlp.experts.{index}.gate_up_proj", 2 * self.intermediate_size, hidden, bias=True),
                Product(f"mlp.experts.{index}.down_proj", hidden, self.intermediate_size, bias=True),
            )
        ]
        return [self._router(hidden), *experts]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """Not the products' own: a stack has no `.weight` to its name, and its last dimension is the output."""
        yield from self._router(hidden).tensors()
        yield "mlp.experts.gate_up_proj", (self.num_experts, hidden, 2 * self.intermediate_size)
        yield "mlp.experts.gate_up_proj_bias", (self.num_experts, 2 * self.intermediate_size)
        yield "mlp.experts.down_proj", (self.num_experts, self.intermediate_size, hidden)
        yield "mlp.experts.down_proj_bias", (self.num_experts, hidden)

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of its own that one token reads: of a stack the share of experts that are chosen."""
        return Fraction(self.experts_per_token, self.num_experts) if name.startswith("mlp.experts.") else Fraction(1)

    def _router(self, hidden: int) -> Product:
        return Product("mlp.router", self.num_experts, hidden, bias=True)
