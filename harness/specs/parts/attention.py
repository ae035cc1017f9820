"""Attention over a cache that grows with every position."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from harness.specs.base import Frozen
from harness.specs.parts.product import Product, Shape


class Attention(Frozen):
    """Causal attention with grouped queries: every position keeps a key and a value for each key head."""

    kind: Literal["attention"] = "attention"
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    """Explicit: Qwen3's 128 is not hidden_size / num_heads."""
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over head_dim on every query and key head (Qwen3)."""
    sinks: bool = False
    """A learned score a query head that takes part in the softmax without a value (gpt-oss)."""
    output_gate: bool = False
    """Each query head brings a gate for its output from the same product, as wide as it is (Qwen3-Next, Qwen3.5)."""
    window: PositiveInt | None = None
    """How many positions a query looks at, its own included; null: all before it. Older ones need not be kept."""

    name: Literal["self_attn", "mixer"] = "self_attn"
    """The module's name within its layer; Nemotron-H calls every part mixer."""

    state_flop: ClassVar[int] = 0
    """A mixer with a cache has no state (`parts.recurrent`)."""

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (values: the same)."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_values(self) -> int:
        """Values that a position keeps in the cache."""
        return 2 * self.kv_size

    @property
    def flop_per_pair(self) -> int:
        """QK^T and PV of one query position against one visible position: 4 x head_dim a query head."""
        return 4 * self.q_size

    @property
    def prefill_flop_per_pair(self) -> int:
        """The same in a prompt."""
        return self.flop_per_pair

    def state_bytes(self, value_bytes: int) -> int:
        """None."""
        return 0

    def num_pairs(self, num_tokens: int) -> int:
        """Visible pairs of a prompt: position i sees i positions, or the window."""
        seen = min(num_tokens, self.window or num_tokens)
        return seen * (seen + 1) // 2 + (num_tokens - seen) * seen

    def products(self, hidden: int) -> list[Product]:
        return [
            Product(f"{self.name}.q_proj", self.q_size * (2 if self.output_gate else 1), hidden, self.qkv_bias),
            Product(f"{self.name}.k_proj", self.kv_size, hidden, self.qkv_bias),
            Product(f"{self.name}.v_proj", self.kv_size, hidden, self.qkv_bias),
            Product(f"{self.name}.o_proj", hidden, self.q_size, self.o_bias),
        ]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """All that a checkpoint keeps of it."""
        for product in self.products(hidden):
            yield from product.tensors()
        if self.qk_norm:
            yield f"{self.name}.q_norm.weight", (self.head_dim,)
            yield f"{self.name}.k_norm.weight", (self.head_dim,)
        if self.sinks:
            yield f"{self.name}.sinks", (self.num_heads,)
