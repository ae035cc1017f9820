"""What works on each position alone: an MLP, or a mixture of them."""

from abc import abstractmethod
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from harness.specs.base import Frozen
from harness.specs.parts.product import Product, Shape


class Dense(Frozen):
    """What all MLPs have that a token goes through as a whole."""

    intermediate_size: PositiveInt
    bias: bool = False
    name: Literal["mlp", "mixer", "feed_forward"] = "mlp"
    """The module's name within its layer."""

    @abstractmethod
    def products(self, hidden: int, at: str | None = None) -> list[Product]:
        """`at`: the module's name where it is part of another."""

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        for product in self.products(hidden):
            yield from product.tensors()

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of its own that one token reads: all."""
        return Fraction(1)


class GatedMlp(Dense):
    """down(act(gate(x)) * up(x))."""

    kind: Literal["gated-mlp"] = "gated-mlp"
    activation: Literal["silu", "gelu_pytorch_tanh"] = "silu"

    def products(self, hidden: int, at: str | None = None) -> list[Product]:
        at = at or self.name
        return [
            Product(f"{at}.gate_proj", self.intermediate_size, hidden, self.bias),
            Product(f"{at}.up_proj", self.intermediate_size, hidden, self.bias),
            Product(f"{at}.down_proj", hidden, self.intermediate_size, self.bias),
        ]


class PlainMlp(Dense):
    """down(act(up(x))): no gate (Nemotron-H)."""

    kind: Literal["plain-mlp"] = "plain-mlp"
    activation: Literal["relu2"] = "relu2"

    def products(self, hidden: int, at: str | None = None) -> list[Product]:
        at = at or self.name
        return [
            Product(f"{at}.up_proj", self.intermediate_size, hidden, self.bias),
            Product(f"{at}.down_proj", hidden, self.intermediate_size, self.bias),
        ]


Expert = Annotated[GatedMlp | PlainMlp, Field(discriminator="kind")]


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
    expert: Expert
    shared: Expert | None = None
    """Sees every token; all shared experts as one of their summed width."""
    shared_name: str = "shared_expert"
    """DeepSeek and Nemotron-H call it shared_experts."""
    normalized: bool = True
    """The weights of the experts that were chosen are scaled to sum to 1."""
    router_correction: bool = False
    """A value an expert that corrects the router's choice (DeepSeek-V3, Nemotron-H)."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a learned gate of one row (Qwen2-MoE, Qwen3-Next)."""
    latent_size: PositiveInt | None = None
    """Routed experts work on a narrower input, and two projections that every token goes through lead there and back
    (Nemotron-H)."""
    stacked: bool = False
    """Checkpoints keep gate and up of all experts in one tensor and down in another, without `.weight` to their names
    (Qwen3.5-MoE; what is quantized lies apart there too)."""
    router: Literal["gate", "router"] = "gate"
    names: Literal["mlp", "block_sparse_moe", "mixer", "feed_forward"] = "mlp"
    """How checkpoints name it: Mixtral's experts are block_sparse_moe.experts.N.w1, w3, w2."""

    def products(self, hidden: int) -> list[Product]:
        """Those that one token goes through; which experts is not known, so they are called expert 0, 1, ..."""
        routed = [p for index in range(self.experts_per_token) for p in self.expert_products(hidden, index)]
        return [self._router(hidden), *routed, *self._common(hidden)]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        for product in (self._router(hidden), *self._common(hidden)):
            yield from product.tensors()
        yield from self._stacks(hidden) if self.stacked else self._apart(hidden)
        if self.router_correction:
            yield f"{self.names}.{self.router}.e_score_correction_bias", (self.num_experts,)

    def read_frac(self, name: str) -> Fraction:
        """Part of a tensor of its own that one token reads: of the experts' together, the share that are chosen."""
        routed = name.startswith(f"{self.names}.experts.")
        return Fraction(self.experts_per_token, self.num_experts) if routed else Fraction(1)

    def _apart(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        for index in range(self.num_experts):
            for product in self.expert_products(hidden, index):
                yield from product.tensors()

    def _stacks(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        width = self.expert.intermediate_size
        yield f"{self.names}.experts.gate_up_proj", (self.num_experts, 2 * width, hidden)
        yield f"{self.names}.experts.down_proj", (self.num_experts, hidden, width)

    def _router(self, hidden: int) -> Product:
        return Product(f"{self.names}.{self.router}", self.num_experts, hidden)

    def expert_products(self, hidden: int, index: int) -> list[Product]:
        """Gate, up and down of one expert."""
        at = f"{self.names}.experts.{index}"
        products = self.expert.products(self.latent_size or hidden, at)
        if self.names != "block_sparse_moe":
            return products
        return [p._replace(name=f"{at}.{w}") for p, w in zip(products, ("w1", "w3", "w2"), strict=True)]

    def _common(self, hidden: int) -> list[Product]:
        """Beside the router and the experts that it chooses from."""
        if self.latent_size is None:
            return self._shared(hidden)
        there = Product(f"{self.names}.fc1_latent_proj", self.latent_size, hidden)
        back = Product(f"{self.names}.fc2_latent_proj", hidden, self.latent_size)
        return [there, back, *self._shared(hidden)]

    def _shared(self, hidden: int) -> list[Product]:
        if self.shared is None:
            return []
        gate = [Product(f"{self.names}.shared_expert_gate", 1, hidden)] if self.shared_gate else []
        return [*self.shared.products(hidden, f"{self.names}.{self.shared_name}"), *gate]
