"""What a layer is made of: parts that each know their products, their tensors and what a position leaves in the cache.

A decoder layer is a mixer, which lets positions look at each other, and an MLP, which does not, with a norm before
each. A model is a few kinds of layers in a pattern (`specs.model`), so that a hybrid is not a special case.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt, model_validator

from harness.specs.base import Frozen

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
    window: PositiveInt | None = None
    """How many positions a query looks at, its own included; null: all before it. Older ones need not be kept."""

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

    def num_pairs(self, num_tokens: int) -> int:
        """Visible pairs of a prompt: position i sees i positions, or the window."""
        seen = min(num_tokens, self.window or num_tokens)
        return seen * (seen + 1) // 2 + (num_tokens - seen) * seen

    def products(self, hidden: int) -> list[Product]:
        return [
            Product("self_attn.q_proj", self.q_size, hidden, self.qkv_bias),
            Product("self_attn.k_proj", self.kv_size, hidden, self.qkv_bias),
            Product("self_attn.v_proj", self.kv_size, hidden, self.qkv_bias),
            Product("self_attn.o_proj", hidden, self.q_size, self.o_bias),
        ]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """All that a checkpoint keeps of it."""
        for product in self.products(hidden):
            yield from product.tensors()
        if self.qk_norm:
            yield "self_attn.q_norm.weight", (self.head_dim,)
            yield "self_attn.k_norm.weight", (self.head_dim,)


class GatedMlp(Frozen):
    """down(act(gate(x)) * up(x))."""

    kind: Literal["gated-mlp"] = "gated-mlp"
    intermediate_size: PositiveInt
    bias: bool = False

    def products(self, hidden: int, at: str = "mlp") -> list[Product]:
        """`at`: the module's name within its layer."""
        return [
            Product(f"{at}.gate_proj", self.intermediate_size, hidden, self.bias),
            Product(f"{at}.up_proj", self.intermediate_size, hidden, self.bias),
            Product(f"{at}.down_proj", hidden, self.intermediate_size, self.bias),
        ]

    def tensors(self, hidden: int, at: str = "mlp") -> Iterator[tuple[str, Shape]]:
        for product in self.products(hidden, at):
            yield from product.tensors()

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of its own that one token reads: all."""
        return Fraction(1)


class Moe(Frozen):
    """A router sends each token through a few of many experts; shared experts see every token.

    Resident is all of it, read is the router, the shared expert and what one token's experts have: billing all experts
    put a Mixtral at 224 % of its memory's peak.
    """

    kind: Literal["moe"] = "moe"
    num_experts: PositiveInt
    experts_per_token: PositiveInt
    expert: GatedMlp
    shared: GatedMlp | None = None
    """Sees every token; all shared experts as one of their summed width."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a learned gate of one row (Qwen2-MoE, Qwen3-Next)."""
    names: Literal["mlp", "block_sparse_moe"] = "mlp"
    """How checkpoints name it: Mixtral's experts are block_sparse_moe.experts.N.w1, w3, w2."""

    @model_validator(mode="after")
    def _has_so_many(self) -> "Moe":
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"{self.experts_per_token} experts a token of {self.num_experts}")
        return self

    def products(self, hidden: int) -> list[Product]:
        """Those that one token goes through; which experts is not known, so they are called expert 0, 1, ..."""
        routed = [p for index in range(self.experts_per_token) for p in self._expert(hidden, index)]
        return [self._router(hidden), *routed, *self._shared(hidden)]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        every = [p for index in range(self.num_experts) for p in self._expert(hidden, index)]
        for product in (self._router(hidden), *every, *self._shared(hidden)):
            yield from product.tensors()

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of its own that one token reads: of the experts' together, the share that are chosen."""
        routed = name.startswith(f"{self.names}.experts.")
        return Fraction(self.experts_per_token, self.num_experts) if routed else Fraction(1)

    def _router(self, hidden: int) -> Product:
        return Product(f"{self.names}.gate", self.num_experts, hidden)

    def _expert(self, hidden: int, index: int) -> list[Product]:
        at = f"{self.names}.experts.{index}"
        products = self.expert.products(hidden, at)
        if self.names == "mlp":
            return products
        return [p._replace(name=f"{at}.{w}") for p, w in zip(products, ("w1", "w3", "w2"), strict=True)]

    def _shared(self, hidden: int) -> list[Product]:
        if self.shared is None:
            return []
        gate = [Product(f"{self.names}.shared_expert_gate", 1, hidden)] if self.shared_gate else []
        return [*self.shared.products(hidden, f"{self.names}.shared_expert"), *gate]


class LayerKind(Frozen):
    """One kind of layer."""

    mixer: Attention
    mlp: Annotated[GatedMlp | Moe, Field(discriminator="kind")]

    def products(self, hidden: int) -> list[Product]:
        """Matrix products with weights that one token goes through."""
        return [*self.mixer.products(hidden), *self.mlp.products(hidden)]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """Names and shapes within the layer."""
        yield from self.mixer.tensors(hidden)
        yield from self.mlp.tensors(hidden)
        yield "input_layernorm.weight", (hidden,)
        yield "post_attention_layernorm.weight", (hidden,)
