"""A model as a scenario has it: other widths, one rank's share."""

from dataclasses import dataclass
from fractions import Fraction

from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.plan.ranks import rank_spec, rank_tensors
from harness.specs.model import ModelSpec
from harness.specs.plan import Bits, Scenario
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import DTYPE_BITS, TensorMeta
from harness.traffic import decode_traffic

_TYPE_OF_BITS = {8: "I8", 4: "F4"}


@dataclass(frozen=True)
class Work:
    """What one rank has to move and multiply."""

    spec: ModelSpec
    traffic: DecodeTraffic


class Variants:
    """Counts each variant of a model once: what-ifs and devices ask for the same ones."""

    def __init__(self, model: ResolvedModel) -> None:
        self.model = model
        self._counted: dict[tuple[Bits | None, int], Work] = {}

    def whole(self, scenario: Scenario) -> Work:
        """The whole model."""
        return self.rank(scenario.model_copy(update={"tensor_parallel": 1}))

    def rank(self, scenario: Scenario) -> Work:
        """The fullest rank's share. Raises ConfigError where heads can't be shared out, or bits not be changed."""
        key = (scenario.weight_bits, scenario.tensor_parallel)
        if key not in self._counted:
            self._counted[key] = self._count(*key)
        work = self._counted[key]
        if scenario.kv_bits is None:
            return work
        return Work(work.spec, _narrower_cache(work.traffic, Fraction(scenario.kv_bits, DTYPE_BITS[work.spec.dtype])))

    def _count(self, weight_bits: Bits | None, num_ranks: int) -> Work:
        spec, tensors = self.model.spec, self.model.tensors
        if weight_bits is not None:
            tensors = _narrower_matrices(spec, tensors, weight_bits)
        rank = rank_spec(spec, num_ranks)
        tensors = rank_tensors(spec, num_ranks, tensors) if num_ranks > 1 else tensors
        return Work(rank, decode_traffic(rank, tensors, self.model.tensors_source))


def _narrower_matrices(spec: ModelSpec, tensors: tuple[TensorMeta, ...], bits: Bits) -> tuple[TensorMeta, ...]:
    """Every matrix at so many bits, embedding and head included; vectors (norms, biases) as they are."""
    if spec.quantization is not None:
        raise ConfigError(
            f"the weights are {spec.quantization} already, and can't be planned at {bits} bits",
            "plan the model that they were made from",
        )
    return tuple(
        TensorMeta(name=tensor.name, dtype=_TYPE_OF_BITS[bits], shape=tensor.shape)
        if len(tensor.shape) > 1 and DTYPE_BITS[tensor.dtype] > bits
        else tensor
        for tensor in tensors
    )


def _narrower_cache(traffic: DecodeTraffic, frac: Fraction) -> DecodeTraffic:
    """Keys and values at a part of their width, in every layer; state keeps its own."""
    sliding = tuple(
        cache.model_copy(update={"bytes_per_context_token": int(cache.bytes_per_context_token * frac)})
        for cache in traffic.sliding_caches
    )
    per_token = int(traffic.kv_bytes_per_context_token * frac)
    return traffic.model_copy(update={"kv_bytes_per_context_token": per_token, "sliding_caches": sliding})
