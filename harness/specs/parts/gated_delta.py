"""The gated delta rule: linear attention with a state of fixed size instead of a cache (Yang et al., 2024).

Per value head a matrix S [key_head_dim, value_head_dim] is decayed, corrected by the error it makes on the new key,
and asked with the query: S = a S;  S += k (b (v - S^T k))^T;  o = S^T q.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from harness.specs.parts.product import Product, Shape
from harness.specs.parts.recurrent import Recurrent


class GatedDelta(Recurrent):
    """Projections, a short causal convolution over query, key and value, the delta rule, and a gated norm."""

    kind: Literal["gated-delta"] = "gated-delta"
    num_key_heads: PositiveInt
    num_value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    fused_inputs: bool = False
    """Qwen3-Next keeps two input projections (qkvz and ba), Qwen3.5 four."""

    flop_per_state_value: ClassVar[int] = 7
    """One for the decay and a multiply-add each for S^T k, the correction and S^T q."""

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        """Query, key and value side by side."""
        return 2 * self.num_key_heads * self.key_head_dim + self.value_size

    @property
    def state_values(self) -> int:
        """S of all value heads."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    def products(self, hidden: int) -> list[Product]:
        sizes = {"qkv": self.conv_channels, "z": self.value_size, "b": self.num_value_heads, "a": self.num_value_heads}
        if self.fused_inputs:
            sizes = {"qkvz": sizes["qkv"] + sizes["z"], "ba": sizes["b"] + sizes["a"]}
        inputs = [Product(f"linear_attn.in_proj_{name}", size, hidden) for name, size in sizes.items()]
        return [*inputs, Product("linear_attn.out_proj", hidden, self.value_size)]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """All that a checkpoint keeps of it."""
        for product in self.products(hidden):
            yield from product.tensors()
        yield "linear_attn.conv1d.weight", (self.conv_channels, 1, self.conv_kernel)
        yield "linear_attn.dt_bias", (self.num_value_heads,)
        yield "linear_attn.A_log", (self.num_value_heads,)
        yield "linear_attn.norm.weight", (self.value_head_dim,)
