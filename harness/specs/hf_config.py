"""From a Hugging Face `config.json` to a `ModelSpec`: by name, field by field, refusing what it does not know.

A field that is missing has either the default that transformers documents for the family, named here, or is refused by
its name: a guessed shape gives a wrong byte count, and a wrong byte count gives a wrong verdict.
"""

from collections.abc import Callable, Mapping
from typing import Any

from harness.specs.hf_fields import Fields
from harness.specs.layer import Attention, GatedMlp, LayerKind, Moe
from harness.specs.model import ModelSpec
from harness.specs.tensor import CONFIG_DTYPES

MAX_LAYERS = 10_000
MAX_EXPERTS = 10_000
"""Each layer's and each expert's tensors are listed one by one: a hostile count must not take the memory."""

Mlp = GatedMlp | Moe


def model_spec_from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelSpec:
    """The spec of a config.json's language model. `source` is named in errors.

    Raises ConfigError for an unknown model_type, a missing or unusable field, and for features that change bytes or
    arithmetic and are not modelled.
    """
    prefix = "model."
    text = config
    if isinstance(config.get("text_config"), Mapping):
        text = {**_inherited(config), **config["text_config"]}
        prefix = "model.language_model."
    fields = Fields(text, source)
    family = _family(fields)
    _refuse_unmodelled(fields)
    num_layers = _num_layers(fields)
    mlps = _MLPS[family](fields, num_layers)
    mixers = _mixers(fields, family, num_layers)
    layers = [LayerKind(mixer=mixer, mlp=mlp) for mixer, mlp in zip(mixers, mlps, strict=True)]
    kinds = tuple(dict.fromkeys(layers))
    theta, scaling = _rope(fields)
    return ModelSpec(
        model_type=family,
        hidden_size=fields.count("hidden_size"),
        kinds=kinds,
        pattern=tuple(map(kinds.index, layers)),
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=fields.count("max_position_embeddings"),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        dtype=_dtype(fields),
        eos_token_ids=_token_ids(fields),
        tensor_prefix=prefix,
    )


def _inherited(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a multimodal wrapper may say once, outside its text_config."""
    keys = ("dtype", "torch_dtype", "tie_word_embeddings", "eos_token_id", "quantization_config")
    return {key: config[key] for key in keys if key in config}


def _family(fields: Fields) -> str:
    name = str(fields.get("model_type", "")).removesuffix("_text")
    if name not in _MLPS:
        raise fields.fault(
            f"model_type {fields.get('model_type')!r} is not a model that this version knows",
            f"known: {', '.join(_MLPS)}; its bytes are not guessed",
        )
    return name


def _refuse_unmodelled(fields: Fields) -> None:
    fields.only("hidden_act", ("silu",), "only silu (a gated MLP) is modelled")
    fields.only("quantization_config", (None,), "quantized checkpoints are not modelled in this version")


def _num_layers(fields: Fields) -> int:
    num_layers = fields.count("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise fields.fault(f"num_hidden_layers is {num_layers}", f"at most {MAX_LAYERS} are believed")
    return num_layers


# --- the MLP of each layer, by family --------------------------------------------------------------------------


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
    """As Qwen3-MoE, with a shared expert behind a gate."""
    expert = GatedMlp(intermediate_size=fields.count("moe_intermediate_size"))
    shared = GatedMlp(intermediate_size=fields.count("shared_expert_intermediate_size"))
    return _sparse(fields, num_layers, _experts(fields, "num_experts", expert, shared=shared, shared_gate=True))


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


_MLPS: dict[str, Callable[[Fields, int], list[Mlp]]] = {
    "llama": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
    "mistral": _dense,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen_moe,
}


# --- attention -------------------------------------------------------------------------------------------------


def _mixers(fields: Fields, family: str, num_layers: int) -> list[Attention]:
    """The attention of each layer: with the window or without."""
    full = _attention(fields, family)
    slides = _slides(fields, family, num_layers)
    if not any(slides):
        return [full] * num_layers
    sliding = full.model_copy(update={"window": fields.count("sliding_window")})
    return [sliding if slide else full for slide in slides]


def _slides(fields: Fields, family: str, num_layers: int) -> list[bool]:
    """Which layers have the window, as each family says it: by layer_types, or by a switch and the first such layer."""
    if fields.get("layer_types"):
        return [kind == "sliding_attention" for kind in _layer_types(fields, num_layers)]
    if family in ("mistral", "mixtral"):  # which have no switch: a window that is set holds in every layer
        return [fields.get("sliding_window") is not None] * num_layers
    if not fields.flag("use_sliding_window", default=False):
        return [False] * num_layers
    first = fields.count("max_window_layers", least=0)
    return [index >= first for index in range(num_layers)]


def _layer_types(fields: Fields, num_layers: int) -> list[str]:
    known = ("full_attention", "sliding_attention")
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise fields.fault(f"layer_types is {kinds}", f"{num_layers} of: {', '.join(known)}")
    return kinds


def _attention(fields: Fields, family: str) -> Attention:
    """Query, key and value have biases in Qwen2 whatever its config says; attention_bias is for all four."""
    heads = fields.count("num_attention_heads")
    bias = fields.flag("attention_bias", default=False)
    return Attention(
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_dim=_head_dim(fields, family, heads),
        qkv_bias=bias or family in ("qwen2", "qwen2_moe"),
        o_bias=bias,
        qk_norm=family in ("qwen3", "qwen3_moe"),
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
        # transformers' default is 128 in Qwen3 and hidden_size / heads in the others: do not guess
        if family.startswith("qwen3"):
            raise fields.fault("head_dim is missing", "qwen3 needs it: it is not hidden_size / num_attention_heads")
        if hidden % heads:
            raise fields.fault(f"head_dim is missing, and {hidden} / {heads} heads is no whole number", "add head_dim")
    head_dim = fields.count_or("head_dim", hidden // heads)
    if head_dim % 2:
        raise fields.fault(f"head_dim is {head_dim}", "it must be even: rotary embeddings turn pairs")
    return head_dim


def _rope(fields: Fields) -> tuple[float, dict[str, Any] | None]:
    """transformers 5 writes rope_parameters, older versions rope_theta and rope_scaling."""
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise fields.fault(f"rope_parameters (rope_scaling) is {given}", "it must be an object")
    parameters = {"rope_theta": fields.get("rope_theta", 10000.0), **given}
    theta = Fields(parameters, fields.source).number("rope_theta")
    del parameters["rope_theta"]
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return theta, None if kind == "default" else parameters


# --- the rest --------------------------------------------------------------------------------------------------


def _dtype(fields: Fields) -> str:
    name = fields.get("dtype", fields.get("torch_dtype"))
    if not isinstance(name, str) or name not in CONFIG_DTYPES:
        found = "is missing" if name is None else f"is {name!r}"
        raise fields.fault(f"dtype (torch_dtype) {found}", f"allowed: {', '.join(CONFIG_DTYPES)}")
    return CONFIG_DTYPES[name]


def _token_ids(fields: Fields) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    ids = () if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise fields.fault(f"eos_token_id is {value!r}", "it must be a token id or a list of them")
    return tuple(ids)
