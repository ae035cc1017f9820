"""The tensors that a decoder keeps, derived from its spec: names, types and shapes as in its checkpoint.

Stands in for safetensors headers where only a config.json is at hand, and is what a checkpoint is held against.
"""

from collections.abc import Set

from harness.specs.layer import LayerKind
from harness.specs.model import ModelSpec
from harness.specs.parts.mlp import Moe
from harness.specs.parts.product import Shape
from harness.specs.tensor import TensorMeta

_PLACES = {
    "model.": "lm_head",
    "backbone.": "lm_head",
    "model.language_model.": "lm_head",
    "language_model.model.": "language_model.lm_head",
}
"""Where checkpoints keep a text model, and its output head's name. The last is that of multimodal ones written before
transformers 4.52, Google's Gemma 3 among them."""


def embedding_name(spec: ModelSpec) -> str:
    return f"{spec.tensor_prefix}{spec.embedding}.weight"


def final_norm_name(spec: ModelSpec) -> str:
    return f"{spec.tensor_prefix}{spec.final_norm}.weight"


def head_name(spec: ModelSpec) -> str:
    return f"{spec.lm_head}.weight"


def as_in_checkpoint(spec: ModelSpec, names: Set[str]) -> ModelSpec:
    """The same model with the names that a checkpoint, of which these are the tensors, has for it.

    A config.json does not say where a wrapper keeps its text model, nor whether experts lie in stacks.
    """
    places = (spec.tensor_prefix, *_PLACES)
    prefix = next((place for place in places if f"{place}{spec.embedding}.weight" in names), spec.tensor_prefix)
    # Of the model itself: its draft head's experts may lie the other way.
    stacked = any(name.startswith(f"{prefix}layers.") and name.endswith(".experts.gate_up_proj") for name in names)
    kinds = tuple(_with_experts(kind, stacked) for kind in spec.kinds)
    return spec.model_copy(update={"tensor_prefix": prefix, "lm_head": _PLACES[prefix], "kinds": kinds})


def _with_experts(kind: LayerKind, stacked: bool) -> LayerKind:
    if not isinstance(kind.mlp, Moe):
        return kind
    return kind.model_copy(update={"mlp": kind.mlp.model_copy(update={"stacked": stacked})})


def model_tensors(spec: ModelSpec) -> list[TensorMeta]:
    """All tensors of the model. A tied output head has none of its own."""
    shapes: dict[str, Shape] = {embedding_name(spec): (spec.vocab_size, spec.hidden_size)}
    for index, layer in enumerate(spec.layers):
        at = f"{spec.tensor_prefix}layers.{index}"
        shapes |= {f"{at}.{name}": shape for name, shape in layer.tensors(spec.hidden_size)}
    shapes[final_norm_name(spec)] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[head_name(spec)] = (spec.vocab_size, spec.hidden_size)
    return [TensorMeta(name=name, dtype=spec.dtype, shape=shape) for name, shape in shapes.items()]
