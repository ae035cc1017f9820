"""The MLP of each layer as a config.json has it, family by family."""

from collections.abc import Callable
from typing import Any

from harness.specs.hf_fields import Fields
from harness.specs.parts.mlp import GatedMlp, Moe

MAX_EXPERTS = 10_000
"""Each expert's tensors are listed one by one: a hostile count must not take the memory."""

Mlp = GatedMlp | Moe


def _dense(fields: Fields, num_layers: int) -> list[Mlp]:
    bias = fields.get("model_type") == "llama" and fields.flag("mlp_bias", default=False)
    return [GatedMlp(intermediate_size=fields.count("intermediate_size"), bias=bias)] * num_layers


def _mixtral(fields: Fields, num_layers: int) -> list[Mlp]:
    expert = GatedMlp(intermediate_size=fields.count("intermediate_size"))
    return [_experts(fields, "num_local_experts", expert, names="block_sparse_moe")] * num_layers


def _qwen_moe(fields: Fields, num_layers: int) -> list[Mlp]:
    """Qwen3-MoE: every decoder_sparse_step'th layer has experts, unless mlp_only_layers names it."""
    expert = GatedMlp(intermediate_size=fields.count("moe_intermediate_size"))
    return _sparse(fields, num_layers, _experts(fields, "num_experts", expert))


def _qwen2_moe(fields: Fields, num_layers: int) -> list[Mlp]:
    """As Qwen3-MoE, with a shared expert behind a gate (also Qwen3-Next)."""
    expert = GatedMlp(intermediate_size=fields.count("moe_intermediate_size"))
    shared = GatedMlp(intermediate_size=fields.count("shared_expert_intermediate_size"))
    return _sparse(fields, num_layers, _experts(fields, "num_experts", expert, shared=shared, shared_gate=True))


def _deepseek(fields: Fields, num_layers: int) -> list[Mlp]:
    """The first layers are dense; the others have experts, and shared ones without a gate, kept as one wide one."""
    fields.only("moe_layer_freq", (None, 1), "only experts in every later layer are modelled")
    width = fields.count("moe_intermediate_size")
    num_shared = fields.count_or("n_shared_experts", 0)
    shared = GatedMlp(intermediate_size=width * num_shared) if num_shared else None
    correction = fields.get("model_type") == "deepseek_v3"
    moe = _experts(
        fields, "n_routed_experts", GatedMlp(intermediate_size=width), shared=shared, shared_name="shared_experts",
        router_correction=correction,
    )  # fmt: skip
    dense = GatedMlp(intermediate_size=fields.count("intermediate_size"))
    num_dense = min(fields.count("first_k_dense_replace", least=0), num_layers)
    return [dense] * num_dense + [moe] * (num_layers - num_dense)


def _sparse(fields: Fields, num_layers: int, moe: Moe) -> list[Mlp]:
    step, dense_at = fields.count_or("decoder_sparse_step", 1), fields.counts("mlp_only_layers")
    has_experts = [(index + 1) % step == 0 and index not in dense_at for index in range(num_layers)]
    if all(has_experts):
        return [moe] * num_layers
    dense = GatedMlp(intermediate_size=fields.count("intermediate_size"))
    return [moe if experts else dense for experts in has_experts]


def _experts(fields: Fields, key: str, expert: GatedMlp, **more: Any) -> Moe:
    num_experts, chosen = fields.count(key), fields.count("num_experts_per_tok")
    if num_experts > MAX_EXPERTS:
        raise fields.fault(f"{key} is {num_experts}", f"at most {MAX_EXPERTS} are believed")
    if chosen > num_experts:
        raise fields.fault(f"num_experts_per_tok is {chosen}", f"at most {key}, {num_experts}")
    return Moe(num_experts=num_experts, experts_per_token=chosen, expert=expert, **more)


MLPS: dict[str, Callable[[Fields, int], list[Mlp]]] = {
    "llama": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
    "mistral": _dense,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen2_moe,
    "qwen3_5": _dense,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""By family: the MLPs of so many layers."""
