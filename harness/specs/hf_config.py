"""From a Hugging Face `config.json` to a `ModelSpec`: by name, field by field, refusing what it does not know.

A field that is missing has either the default that transformers documents for the family, named here, or is refused by
its name: a guessed shape gives a wrong byte count, and a wrong byte count gives a wrong verdict.
"""

from collections.abc import Mapping
from typing import Any

from harness.specs.hf_fields import Fields
from harness.specs.hf_mixers import GEMMAS, HYBRIDS, NO_ROPE, layer_mixers
from harness.specs.hf_mlps import MLPS
from harness.specs.hf_names import with_usual_names
from harness.specs.layer import LayerKind
from harness.specs.model import ModelSpec

_GEMMA_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
_JAMBA_NORMS = ("input_layernorm", "pre_ff_layernorm")
_NORMS = {
    "gemma2": _GEMMA_NORMS, "gemma3": _GEMMA_NORMS, "nemotron_h": ("norm",),
    "jamba": _JAMBA_NORMS, "bamba": _JAMBA_NORMS,
}  # fmt: skip
"""Of a layer, where they are not the usual two."""
_NAMES = {
    "nemotron_h": {"tensor_prefix": "backbone.", "embedding": "embeddings", "final_norm": "norm_f"},
    "jamba": {"final_norm": "final_layernorm"},
    "bamba": {"final_norm": "final_layernorm"},
}
"""Of tensors outside the layers, where they are not the usual ones."""
_ACTIVATIONS = {
    "gemma2": ("hidden_activation", "gelu_pytorch_tanh"),
    "gemma3": ("hidden_activation", "gelu_pytorch_tanh"),
    "nemotron_h": ("mlp_hidden_act", "relu2"),
}
"""The field and its one value that is known, where it is not hidden_act and silu."""
_VISION = (
    "model.visual.", "visual.",
    "model.vision_tower.", "vision_tower.", "model.multi_modal_projector.", "multi_modal_projector.",
)  # fmt: skip
"""How the names of a wrapper's image part begin: Qwen's, then Gemma's."""
MAX_LAYERS = 10_000
"""Each layer's tensors are listed one by one: a hostile count must not take the memory."""


def model_spec_from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelSpec:
    """The spec of a config.json's language model. `source` is named in errors.

    Raises ConfigError for an unknown model_type, a missing or unusable field, and for features that change bytes or
    arithmetic and are not modelled.
    """
    prefix = "model."
    text = config
    if isinstance(config.get("text_config"), Mapping):
        said = {key: value for key, value in config["text_config"].items() if value is not None}
        text = {**config["text_config"], **_inherited(config), **said}
        prefix = "model.language_model."
    family = _family(Fields(text, source))
    fields = Fields(with_usual_names(text, family), source)
    _refuse_other_activations(fields, family)
    num_layers = _num_layers(fields)
    mlps = MLPS[family](fields, num_layers)
    mixers = layer_mixers(fields, family, num_layers)
    norms = {"norms": _NORMS[family]} if family in _NORMS else {}
    layers = [LayerKind(mixer=mixer, mlp=mlp, **norms) for mixer, mlp in zip(mixers, mlps, strict=True)]
    kinds = tuple(dict.fromkeys(layers))
    theta, rotary_frac, scaling = _rope(fields, family)
    return ModelSpec(
        model_type=family,
        hidden_size=fields.count("hidden_size"),
        kinds=kinds,
        pattern=tuple(map(kinds.index, layers)),
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=fields.count("max_position_embeddings"),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=family in GEMMAS),
        rms_norm_eps=fields.number("rms_norm_eps"),
        centered_norms=family in GEMMAS or family in HYBRIDS,
        rope_theta=theta,
        rope_scaling=scaling,
        rotary_frac=rotary_frac,
        dtype=fields.dtype("dtype", "torch_dtype"),
        eos_token_ids=_token_ids(fields),
        not_read=_not_read(config, fields, family),
        quantization=_quantization(fields),
        **{"tensor_prefix": prefix, **_NAMES.get(family, {})},
    )


def _inherited(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a multimodal wrapper may say once, outside its text_config."""
    keys = ("dtype", "torch_dtype", "tie_word_embeddings", "eos_token_id", "quantization_config")
    return {key: config[key] for key in keys if key in config}


def _family(fields: Fields) -> str:
    name = str(fields.get("model_type", "")).removesuffix("_text")
    if name not in MLPS:
        raise fields.fault(
            f"model_type {fields.get('model_type')!r} is not a model that this version knows",
            f"known: {', '.join(MLPS)}; its bytes are not guessed",
        )
    return name


def _refuse_other_activations(fields: Fields, family: str) -> None:
    """A known one says whether the MLP is gated."""
    key, known = _ACTIVATIONS.get(family, ("hidden_act", "silu"))
    fields.only(key, (known,), f"only {known} is modelled for {family}")


def _num_layers(fields: Fields) -> int:
    num_layers = fields.count("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise fields.fault(f"num_hidden_layers is {num_layers}", f"at most {MAX_LAYERS} are believed")
    return num_layers


def _quantization(fields: Fields) -> str | None:
    """The method's name. What it makes of each tensor stands in the checkpoint's headers alone."""
    given = fields.get("quantization_config")
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    if not isinstance(method, str) or not method:
        raise fields.fault(f"quantization_config is {given}", "it must be an object with a quant_method")
    return method


def _not_read(config: Mapping[str, Any], fields: Fields, family: str) -> tuple[str, ...]:
    """A vision tower reads the prompt's images and a draft head guesses ahead: a decode step needs neither."""
    vision = _VISION if config.get("vision_config") else ()
    # Nemotron-H's checkpoints may hold a draft head that its config doesn't mention.
    has_draft = family == "nemotron_h" or fields.count_or("mtp_num_hidden_layers", 0, least=0)
    drafts = ("mtp.",) if has_draft else ()
    num_layers, num_more = fields.count("num_hidden_layers"), fields.count_or("num_nextn_predict_layers", 0, least=0)
    behind = tuple(f"model.layers.{index}." for index in range(num_layers, num_layers + min(num_more, MAX_LAYERS)))
    return (*vision, *drafts, *behind)


def _rope(fields: Fields, family: str) -> tuple[float, float, dict[str, Any] | None]:
    """(theta, part of a head that turns, scaling): in rope_parameters since transformers 5, single keys before."""
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    # Gemma 3 has two angles: that of its full layers stands for the model's, its windows' is not needed for bytes.
    given = given.get("full_attention", given) if isinstance(given, Mapping) else given
    if not isinstance(given, Mapping):
        raise fields.fault(f"rope_parameters (rope_scaling) is {given}", "it must be an object")
    defaults = {"rope_theta": 10000.0, "partial_rotary_factor": _rotary_frac(family)}
    single = {key: fields.get(key, default) for key, default in defaults.items()}
    parameters = {**single, **given}
    both = Fields(parameters, fields.source)
    theta, rotary_frac = both.number("rope_theta"), both.number("partial_rotary_factor")
    if family in NO_ROPE:
        return theta, 0.0, None
    for key in single:
        del parameters[key]
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return theta, rotary_frac, None if kind == "default" else parameters


def _rotary_frac(family: str) -> float:
    """transformers' default."""
    return 0.25 if family in HYBRIDS else 0.5 if family == "bamba" else 1.0


def _token_ids(fields: Fields) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    ids = () if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise fields.fault(f"eos_token_id is {value!r}", "it must be a token id or a list of them")
    return tuple(ids)
