"""The MLP of each layer as a config.json has it, family by family."""

from collections.abc import Callable, Sequence
from typing import Any

from harness.specs.hf_fields import Fields
from harness.specs.hf_mamba import by_period, nemotron_blocks
from harness.specs.layer import Mlp
from harness.specs.parts.absent import NoMlp
from harness.specs.parts.mlp import Expert, GatedMlp, Moe, PlainMlp
from harness.specs.parts.stacked_moe import StackedMoe

MAX_EXPERTS = 1_000_000
"""In all layers: each one's tensors are listed one by one, and a hostile count must not take the memory."""


def _dense(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    bias = fields.get("model_type") == "llama" and fields.flag("mlp_bias", default=False)
    return [GatedMlp(intermediate_size=fields.count("intermediate_size"), bias=bias)] * num_layers


def _gemma(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    mlp = GatedMlp(intermediate_size=fields.count("intermediate_size"), activation="gelu_pytorch_tanh")
    return [mlp] * num_layers


def _mixtral(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    expert = GatedMlp(intermediate_size=fields.count("intermediate_size"))
    return [_experts(fields, "num_local_experts", expert, names="block_sparse_moe")] * num_layers


def _qwen_moe(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    """Qwen3-MoE: every decoder_sparse_step'th layer has experts, unless mlp_only_layers names it."""
    expert = GatedMlp(intermediate_size=fields.count("moe_intermediate_size"))
    return _sparse(fields, num_layers, _experts(fields, "num_experts", expert, normalized=_normalized(fields)))


def _qwen2_moe(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    """As Qwen3-MoE, with a shared expert behind a gate (also Qwen3-Next and, in stacks, Qwen3.5-MoE)."""
    stacked = fields.get("model_type") in ("qwen3_5_moe", "qwen3_5_moe_text")
    expert = GatedMlp(intermediate_size=fields.count("moe_intermediate_size"))
    shared = GatedMlp(intermediate_size=fields.count("shared_expert_intermediate_size"))
    moe = _experts(
        fields, "num_experts", expert, shared=shared, shared_gate=True, stacked=stacked,
        normalized=_normalized(fields),
    )  # fmt: skip
    return _sparse(fields, num_layers, moe)


def _normalized(fields: Fields) -> bool:
    return fields.flag("norm_topk_prob", default=False)


def _deepseek(fields: Fields, num_layers: int) -> Sequence[Mlp]:
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


def _gpt_oss(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    num_experts, chosen = _num_experts(fields, "num_local_experts")
    width = fields.count("intermediate_size")
    return [StackedMoe(num_experts=num_experts, experts_per_token=chosen, intermediate_size=width)] * num_layers


def _nemotron(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    """A layer is either an MLP, with experts or without, or a mixer."""
    fields.only("mlp_bias", (None, False), "MLPs with biases are not modelled for Nemotron-H")
    blocks = nemotron_blocks(fields)
    mlps: dict[str, Mlp] = {}
    if "mlp" in blocks:
        mlps["mlp"] = PlainMlp(intermediate_size=fields.count("intermediate_size"), name="mixer")
    if "moe" in blocks:
        mlps["moe"] = _nemotron_moe(fields)
    return [mlps.get(block, NoMlp()) for block in blocks]


def _nemotron_moe(fields: Fields) -> Moe:
    fields.only("n_shared_experts", (None, 1), "one shared expert is modelled for Nemotron-H")
    latent = None if fields.get("moe_latent_size") is None else fields.count("moe_latent_size")
    expert = PlainMlp(intermediate_size=fields.count("moe_intermediate_size"))
    shared = PlainMlp(intermediate_size=fields.count("moe_shared_expert_intermediate_size"))
    return _experts(
        fields, "n_routed_experts", expert, shared=shared, shared_name="shared_experts", router_correction=True,
        latent_size=latent, names="mixer",
    )  # fmt: skip


def _bamba(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    bias = fields.flag("mlp_bias", default=False)
    return [GatedMlp(intermediate_size=fields.count("intermediate_size"), bias=bias, name="feed_forward")] * num_layers


def _jamba(fields: Fields, num_layers: int) -> Sequence[Mlp]:
    """Experts in some layers, as wide as the dense ones' MLP; Jamba's small models have one expert, which is none."""
    width = fields.count("intermediate_size")
    dense = GatedMlp(intermediate_size=width, name="feed_forward")
    if fields.count("num_experts") == 1:
        return [dense] * num_layers
    expert = GatedMlp(intermediate_size=width)
    moe = _experts(fields, "num_experts", expert, names="feed_forward", router="router")
    return [moe if experts else dense for experts in by_period(fields, "expert", num_layers)]


def _sparse(fields: Fields, num_layers: int, moe: Moe) -> Sequence[Mlp]:
    step, dense_at = fields.count_or("decoder_sparse_step", 1), fields.counts("mlp_only_layers")
    has_experts = [(index + 1) % step == 0 and index not in dense_at for index in range(num_layers)]
    if all(has_experts):
        return [moe] * num_layers
    dense = GatedMlp(intermediate_size=fields.count("intermediate_size"))
    return [moe if experts else dense for experts in has_experts]


def _experts(fields: Fields, key: str, expert: Expert, **more: Any) -> Moe:
    num_experts, chosen = _num_experts(fields, key)
    return Moe(num_experts=num_experts, experts_per_token=chosen, expert=expert, **more)


def _num_experts(fields: Fields, key: str) -> tuple[int, int]:
    """(all, those that a token is routed to). transformers 5 writes `num_local_experts` for every family."""
    key = "num_local_experts" if fields.get(key) is None and fields.get("num_local_experts") is not None else key
    num_experts, chosen = fields.count(key), fields.count("num_experts_per_tok")
    if num_experts * fields.count("num_hidden_layers") > MAX_EXPERTS:
        raise fields.fault(f"{key} is {num_experts}", f"at most {MAX_EXPERTS} in all layers are believed")
    if chosen > num_experts:
        raise fields.fault(f"num_experts_per_tok is {chosen}", f"at most {key}, {num_experts}")
    return num_experts, chosen


MLPS: dict[str, Callable[[Fields, int], Sequence[Mlp]]] = {
    "llama": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
    "mistral": _dense,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen2_moe,
    "qwen3_5": _dense,
    "qwen3_5_moe": _qwen2_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "nemotron_h": _nemotron,
    "jamba": _jamba,
    "bamba": _bamba,
}
"""By family: the MLPs of so many layers."""
