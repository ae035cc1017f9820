"""From a Hugging Face `config.json` to a `ModelSpec`: by name, field by field, refusing what it does not know.

A field that is missing has either the default that transformers documents for the family, named here, or is refused by
its name: a guessed shape gives a wrong byte count, and a wrong byte count gives a wrong verdict.
"""

from collections.abc import Mapping
from typing import Any

from harness.errors import ConfigError
from harness.specs.model import ModelSpec
from harness.specs.tensor import CONFIG_DTYPES

# Query, key and value have biases in Qwen2 whatever its config says; the others have an `attention_bias` for all four.
_FAMILIES = ("llama", "qwen2", "qwen3")
MAX_NUMBER = 1e30
MAX_LAYERS = 10_000
"""Each layer's tensors are listed one by one: a hostile count must not take the memory."""
_REQUIRED_COUNTS = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}


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
    family = _family(text, source)
    _refuse_unmodelled(text, family, source)
    counts = {ours: _count(text, theirs, source) for theirs, ours in _REQUIRED_COUNTS.items()}
    if counts["num_layers"] > MAX_LAYERS:
        raise ConfigError(
            f"{source}: num_hidden_layers is {counts['num_layers']}", f"at most {MAX_LAYERS} are believed"
        )
    heads = counts["num_attention_heads"]
    attention_bias = _flag(text, "attention_bias", False, source)
    theta, scaling = _rope(text, source)
    return ModelSpec(
        model_type=family,
        **counts,
        num_kv_heads=_kv_heads(text, heads, source),
        head_dim=_head_dim(text, family, counts["hidden_size"], heads, source),
        tie_word_embeddings=_flag(text, "tie_word_embeddings", False, source),
        qkv_bias=attention_bias or family == "qwen2",
        o_bias=attention_bias,
        mlp_bias=family == "llama" and _flag(text, "mlp_bias", False, source),
        qk_norm=family == "qwen3",
        rms_norm_eps=_number(text, "rms_norm_eps", source),
        rope_theta=theta,
        rope_scaling=scaling,
        dtype=_dtype(text, source),
        eos_token_ids=_token_ids(text.get("eos_token_id"), source),
        tensor_prefix=prefix,
    )


def _inherited(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a multimodal wrapper may say once, outside its text_config."""
    keys = ("dtype", "torch_dtype", "tie_word_embeddings", "eos_token_id", "quantization_config")
    return {key: config[key] for key in keys if key in config}


def _family(text: Mapping[str, Any], source: str) -> str:
    name = str(text.get("model_type", "")).removesuffix("_text")
    if name not in _FAMILIES:
        raise ConfigError(
            f"{source}: model_type {text.get('model_type')!r} is not a model that this version knows",
            f"known: {', '.join(_FAMILIES)}; its bytes are not guessed",
        )
    return name


def _refuse_unmodelled(text: Mapping[str, Any], family: str, source: str) -> None:
    act = text.get("hidden_act")
    if act != "silu":
        raise ConfigError(f"{source}: hidden_act is {act!r}", "only silu (a gated MLP) is modelled")
    if _flag(text, "use_sliding_window", False, source):
        raise ConfigError(f"{source}: use_sliding_window is true", "sliding windows are not modelled in this version")
    kinds = text.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise ConfigError(f"{source}: layer_types is {str(kinds)[:200]}", "only full_attention layers are modelled")
    if text.get("quantization_config") is not None:
        raise ConfigError(
            f"{source}: quantization_config is set", "quantized checkpoints are not modelled in this version"
        )


def _count(text: Mapping[str, Any], key: str, source: str) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "is missing" if value is None else f"is {value!r}"
        raise ConfigError(
            f"{source}: {key} {found}", f"it must be a whole number of at least 1 for {text.get('model_type')}"
        )
    return value


def _number(text: Mapping[str, Any], key: str, source: str) -> float:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_NUMBER:
        found = "is missing" if value is None else f"is {value!r}"
        raise ConfigError(f"{source}: {key} {found[:200]}", "it must be a finite number above 0")
    return float(value)


def _flag(text: Mapping[str, Any], key: str, default: bool, source: str) -> bool:
    value = text.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{source}: {key} is {value!r}", "it must be true or false")
    return value


def _kv_heads(text: Mapping[str, Any], heads: int, source: str) -> int:
    """Without the key every query head has a key head of its own, as transformers documents."""
    kv_heads = heads if text.get("num_key_value_heads") is None else _count(text, "num_key_value_heads", source)
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
            "each key head serves a whole number of query heads",
        )
    return kv_heads


def _head_dim(text: Mapping[str, Any], family: str, hidden: int, heads: int, source: str) -> int:
    if text.get("head_dim") is not None:
        return _even(_count(text, "head_dim", source), source)
    if family == "qwen3":  # transformers' default there is 128, hidden_size / heads in the others: do not guess
        raise ConfigError(
            f"{source}: head_dim is missing", "qwen3 needs it: it is not hidden_size / num_attention_heads"
        )
    if hidden % heads:
        raise ConfigError(
            f"{source}: head_dim is missing, and {hidden} / {heads} heads is no whole number", "add head_dim"
        )
    return _even(hidden // heads, source)


def _even(head_dim: int, source: str) -> int:
    """Rotary embeddings turn pairs of dimensions."""
    if head_dim % 2:
        raise ConfigError(f"{source}: head_dim is {head_dim}", "it must be even: rotary embeddings turn pairs")
    return head_dim


def _rope(text: Mapping[str, Any], source: str) -> tuple[float, dict[str, Any] | None]:
    """transformers 5 writes rope_parameters, older versions rope_theta and rope_scaling."""
    given = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: rope_parameters (rope_scaling) is {str(given)[:200]}", "it must be an object")
    parameters = dict(given)
    theta = parameters.pop("rope_theta", text.get("rope_theta", 10000.0))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return _number({"rope_theta": theta}, "rope_theta", source), None if kind == "default" else parameters


def _dtype(text: Mapping[str, Any], source: str) -> str:
    name = text.get("dtype", text.get("torch_dtype"))
    if not isinstance(name, str) or name not in CONFIG_DTYPES:
        found = "is missing" if name is None else f"is {name!r}"
        raise ConfigError(f"{source}: dtype (torch_dtype) {found}", f"allowed: {', '.join(CONFIG_DTYPES)}")
    return CONFIG_DTYPES[name]


def _token_ids(value: Any, source: str) -> tuple[int, ...]:
    ids = () if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ConfigError(f"{source}: eos_token_id is {value!r}", "it must be a token id or a list of them")
    return tuple(ids)
