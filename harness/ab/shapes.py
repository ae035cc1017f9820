"""The shapes that a model's decode step multiplies with, fused and unfused."""

from dataclasses import dataclass

from harness.specs.model import ModelSpec
from harness.specs.problem import LinearProblem


@dataclass(frozen=True)
class ModelShape:
    """One shape, the products that have it, and how often a token needs it."""

    roles: tuple[str, ...]
    n: int
    k: int
    bias: bool
    calls_per_token: int

    def problem(self, m: int, dtype: str) -> LinearProblem:
        return LinearProblem(m=m, n=self.n, k=self.k, dtype=dtype, bias=self.bias)


def model_shapes(spec: ModelSpec) -> list[ModelShape]:
    """Every distinct shape once; calls_per_token counts the layers and roles that share it."""
    hidden, (attention, mlp) = spec.hidden_size, spec.dense()
    products = {
        p.name.rpartition(".")[2].removesuffix("_proj"): (p.n, p.k, p.bias) for p in spec.kinds[0].products(hidden)
    }
    products["qkv"] = (attention.q_size + 2 * attention.kv_size, hidden, attention.qkv_bias)
    products["gate_up"] = (2 * mlp.intermediate_size, hidden, mlp.bias)
    found: dict[tuple[int, int, bool], list[str]] = {}
    for role, shape in products.items():
        found.setdefault(shape, []).append(role)
    shapes = [
        ModelShape(tuple(roles), n, k, bias, len(roles) * spec.num_layers) for (n, k, bias), roles in found.items()
    ]
    return [*shapes, ModelShape(("lm_head",), spec.vocab_size, hidden, False, 1)]
