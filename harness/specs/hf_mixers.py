"""The mixer of each layer as a config.json has it: attention with or without a window, the gated delta rule, Mamba."""

from harness.specs.hf_fields import Fields
from harness.specs.hf_mamba import bamba_layers, by_period, jamba_mamba, mamba2, nemotron_blocks
from harness.specs.layer import Mixer
from harness.specs.parts.absent import NoMixer
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.latent_attention import LatentAttention

HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
"""Families with gated delta rule layers."""

GEMMAS = ("gemma2", "gemma3")
LATENT = ("deepseek_v2", "deepseek_v3")
"""Families whose cache is a latent vector."""
NO_ROPE = ("nemotron_h", "jamba")
"""Families whose attention knows no positions: the Mamba layers' states do."""


def layer_mixers(fields: Fields, family: str, num_layers: int) -> list[Mixer]:
    """What lets positions look at each other, by layer."""
    if family in LATENT:
        return [_latent(fields)] * num_layers
    full = _attention(fields, family)
    kinds = _layer_kinds(fields, family, num_layers)
    mixers: dict[str, Mixer] = {"full_attention": full, "mlp": NoMixer(), "moe": NoMixer()}
    if "sliding_attention" in kinds:
        mixers["sliding_attention"] = full.model_copy(update={"window": fields.count("sliding_window")})
    if "linear_attention" in kinds:
        mixers["linear_attention"] = _linear(fields, family)
    return [mixers[kind] for kind in kinds]


def _latent(fields: Fields) -> LatentAttention:
    fields.only("attention_bias", (None, False), "latent attention with biases is not modelled")
    return LatentAttention(
        num_heads=fields.count("num_attention_heads"),
        q_lora_rank=None if fields.get("q_lora_rank") is None else fields.count("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
    )


def _linear(fields: Fields, family: str) -> Mixer:
    """What keeps a state instead of a cache."""
    if family in ("nemotron_h", "bamba"):
        return mamba2(fields, family)
    return jamba_mamba(fields) if family == "jamba" else _gated_delta(fields, family)


def _gated_delta(fields: Fields, family: str) -> GatedDelta:
    """The state is kept in fp32 unless the config says otherwise: its errors would add up over a whole request."""
    delta = GatedDelta(
        num_key_heads=fields.count("linear_num_key_heads"),
        num_value_heads=fields.count("linear_num_value_heads"),
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
        state_dtype=fields.dtype("mamba_ssm_dtype", default="float32"),
        fused_inputs=family == "qwen3_next",
    )
    if delta.num_value_heads % delta.num_key_heads:
        raise fields.fault(
            f"linear_num_value_heads is {delta.num_value_heads}",
            f"a multiple of linear_num_key_heads, {delta.num_key_heads}",
        )
    return delta


def _layer_kinds(fields: Fields, family: str, num_layers: int) -> list[str]:
    """As each family says it: by layer_types, by an interval, or by a switch and the first layer with a window."""
    if family == "nemotron_h":
        return nemotron_blocks(fields)
    if family == "bamba":
        return bamba_layers(fields, num_layers)
    if family == "jamba":
        has_cache = by_period(fields, "attn", num_layers)
        return ["full_attention" if attends else "linear_attention" for attends in has_cache]
    if fields.get("layer_types"):
        return _layer_types(fields, family, num_layers)
    if family in HYBRIDS:
        every = fields.count("full_attention_interval")
        full = [(index + 1) % every == 0 for index in range(num_layers)]
        return ["full_attention" if is_full else "linear_attention" for is_full in full]
    slides = _slides(fields, family, num_layers)
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _slides(fields: Fields, family: str, num_layers: int) -> list[bool]:
    if family in ("mistral", "mixtral"):  # which have no switch: a window that is set holds in every layer
        return [fields.get("sliding_window") is not None] * num_layers
    if family in ("gpt_oss", "gemma2"):  # every other layer, the first one included
        return [index % 2 == 0 for index in range(num_layers)]
    if family == "gemma3":  # all but every sixth
        every = fields.count_or("sliding_window_pattern", 6)
        return [(index + 1) % every != 0 for index in range(num_layers)]
    if not fields.flag("use_sliding_window", default=False):
        return [False] * num_layers
    first = fields.count("max_window_layers", least=0)
    return [index >= first for index in range(num_layers)]


def _layer_types(fields: Fields, family: str, num_layers: int) -> list[str]:
    known = ["full_attention", "linear_attention" if family in HYBRIDS else "sliding_attention"]
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise fields.fault(f"layer_types is {kinds}", f"{num_layers} of: {', '.join(known)}")
    return kinds


def _attention(fields: Fields, family: str) -> Attention:
    """Query, key and value have biases in Qwen2 whatever its config says; attention_bias is for all four."""
    if family == "nemotron_h":
        fields.only("attention_bias", (None, False), "attention with biases is not modelled for Nemotron-H")
        fields.only("sliding_window", (None,), "a window is not modelled for Nemotron-H")
    heads = fields.count("num_attention_heads")
    bias = fields.flag("attention_bias", default=family == "gpt_oss")
    return Attention(
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_dim=_head_dim(fields, family, heads),
        qkv_bias=bias or family in ("qwen2", "qwen2_moe"),
        o_bias=bias,
        qk_norm=family.startswith("qwen3") or family == "gemma3",
        sinks=family == "gpt_oss",
        output_gate=family in HYBRIDS and fields.flag("attn_output_gate", default=True),
        name="mixer" if family == "nemotron_h" else "self_attn",
    )


def _kv_heads(fields: Fields, heads: int) -> int:
    """Without the key every query head has a key head of its own, as transformers documents."""
    kv_heads = fields.count_or("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.fault(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
            "each key head serves a whole number of query heads",
        )
    return kv_heads


def _head_dim(fields: Fields, family: str, heads: int) -> int:
    """Even: rotary embeddings turn pairs of dimensions."""
    hidden = fields.count("hidden_size")
    if fields.get("head_dim") is None:
        # transformers' default is 128 in Qwen3 and Nemotron-H and hidden_size / heads in the others: do not guess
        if family.startswith("qwen3") or family in (*GEMMAS, "nemotron_h"):
            raise fields.fault("head_dim is missing", f"{family} needs it: it is not hidden_size / num_attention_heads")
        if hidden % heads:
            raise fields.fault(f"head_dim is missing, and {hidden} / {heads} heads is no whole number", "add head_dim")
    head_dim = fields.count_or("head_dim", hidden // heads)
    if head_dim % 2:
        raise fields.fault(f"head_dim is {head_dim}", "it must be even: rotary embeddings turn pairs")
    return head_dim
