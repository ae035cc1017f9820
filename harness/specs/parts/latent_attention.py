"""Multi-head latent attention (DeepSeek-V2, 2024): the cache holds one compressed vector a position, for all heads.

A position keeps kv_lora_rank values, from which every head's key and value are projections, and qk_rope_head_dim values
of a key that turns and that all heads share. Billed as full heads it would be some 25 times as much.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from harness.specs.base import Frozen
from harness.specs.parts.product import Product, Shape


class LatentAttention(Frozen):
    """Queries by way of a low rank or directly; keys and values by way of the latent vector."""

    kind: Literal["latent-attention"] = "latent-attention"
    num_heads: PositiveInt
    q_lora_rank: PositiveInt | None
    """Null: queries are projected directly (DeepSeek-V2-Lite)."""
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt

    window: ClassVar[None] = None
    state_flop: ClassVar[int] = 0

    @property
    def kv_values(self) -> int:
        """Values that a position keeps in the cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def flop_per_pair(self) -> int:
        """One new query against one cached position, on the latent vector itself: query and output take over the
        projections of keys and values, at the same cost as `kv_b_proj` for one position."""
        return 2 * self.num_heads * (self.kv_values + self.kv_lora_rank)

    @property
    def prefill_flop_per_pair(self) -> int:
        """In a prompt keys and values are projected once a position, and heads are as wide as they are."""
        return 2 * self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    def state_bytes(self, value_bytes: int) -> int:
        """None: it has a cache."""
        return 0

    def num_pairs(self, num_tokens: int) -> int:
        """Visible pairs of a prompt."""
        return num_tokens * (num_tokens + 1) // 2

    def products(self, hidden: int) -> list[Product]:
        queries = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        if self.q_lora_rank is None:
            q = [Product("self_attn.q_proj", queries, hidden)]
        else:
            q = [
                Product("self_attn.q_a_proj", self.q_lora_rank, hidden),
                Product("self_attn.q_b_proj", queries, self.q_lora_rank),
            ]
        keys_and_values = self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        return [
            *q,
            Product("self_attn.kv_a_proj_with_mqa", self.kv_values, hidden),
            Product("self_attn.kv_b_proj", keys_and_values, self.kv_lora_rank),
            Product("self_attn.o_proj", hidden, self.num_heads * self.v_head_dim),
        ]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """All that a checkpoint keeps of it."""
        for product in self.products(hidden):
            yield from product.tensors()
        if self.q_lora_rank is not None:
            yield "self_attn.q_a_layernorm.weight", (self.q_lora_rank,)
        yield "self_attn.kv_a_layernorm.weight", (self.kv_lora_rank,)
