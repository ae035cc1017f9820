"""What works on each position alone: a gated MLP, or a mixture of them."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from pydantic import PositiveInt, model_validator

from harness.specs.base import Frozen
from harness.specs.parts.product import Product, Shape


class GatedMlp(Frozen):
    """down(act(gate(x)) * up(x))."""

    kind: Literal["gated-mlp"] = "gated-mlp"
    intermediate_size: PositiveInt
    bias: bool = False
    activation: Literal["silu", "gelu_pytorch_tanh"] = "silu"

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


class Routed(Frozen):
    """What all mixtures have: a router that sends each token through a few of many experts."""

    num_experts: PositiveInt
    experts_per_token: PositiveInt

    @model_validator(mode="after")
    def _has_so_many(self) -> "Routed":
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"{self.experts_per_token} experts a token of {self.num_experts}")
        return self


class Moe(Routed):
    """A router sends each token through a few of many experts; shared experts see every token.

    Resident is all of it, read is the router, the shared expert and what one token's experts have: billing all experts
    put a Mixtral at 224 % of its memory's peak.
    """

    kind: Literal["moe"] = "moe"
    expert: GatedMlp
    shared: GatedMlp | None = None
    """Sees every token; all shared experts as one of their summed width."""
    shared_name: str = "shared_expert"
    """DeepSeek calls it shared_experts."""
    normalized: bool = True
    """The weights of the experts that were chosen are scaled to sum to 1."""
    router_correction: bool = False
    """A value an expert that corrects the router's choice (DeepSeek-V3)."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a learned gate of one row (Qwen2-MoE, Qwen3-Next)."""
    names: Literal["mlp", "block_sparse_moe"] = "mlp"
    """How checkpoints name it: Mixtral's experts are block_sparse_moe.experts.N.w1, w3, w2."""

    def products(self, hidden: int) -> list[Product]:
        """Those that one token goes through; which experts is not known, so they are called expert 0, 1, ..."""
        routed = [p for index in range(self.experts_per_token) for p in self.expert_products(hidden, index)]
        return [self._router(hidden), *routed, *self._shared(hidden)]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        every = [p for index in range(self.num_experts) for p in self.expert_products(hidden, index)]
        for product in (self._router(hidden), *every, *self._shared(hidden)):
            yield from product.tensors()
        if self.router_correction:
            yield f"{self.names}.gate.e_score_correction_bias", (self.num_experts,)

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of its own that one token reads: of the experts' together, the share that are chosen."""
        routed = name.startswith(f"{self.names}.experts.")
        return Fraction(self.experts_per_token, self.num_experts) if routed else Fraction(1)

    def _router(self, hidden: int) -> Product:
        return Product(f"{self.names}.gate", self.num_experts, hidden)

    def expert_products(self, hidden: int, index: int) -> list[Product]:
        """Gate, up and down of one expert."""
        at = f"{self.names}.experts.{index}"
        products = self.expert.products(hidden, at)
        if self.names == "mlp":
            return products
        return [p._replace(name=f"{at}.{w}") for p, w in zip(products, ("w1", "w3", "w2"), strict=True)]

    def _shared(self, hidden: int) -> list[Product]:
        if self.shared is None:
            return []
        gate = [Product(f"{self.names}.shared_expert_gate", 1, hidden)] if self.shared_gate else []
        return [*self.shared.products(hidden, f"{self.names}.{self.shared_name}"), *gate]
