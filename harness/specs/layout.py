"""The tensors that a decoder keeps, derived from its spec: names, types and shapes as in its checkpoint.

Stands in for safetensors headers where only a config.json is at hand, and is what a checkpoint is held against.
"""

from harness.specs.model import ModelSpec
from harness.specs.parts.product import Shape
from harness.specs.tensor import TensorMeta

EMBEDDING = "embed_tokens.weight"
"""In plain dense models (`ModelSpec.dense`)."""
LM_HEAD = "lm_head.weight"


def embedding_name(spec: ModelSpec) -> str:
    return f"{spec.tensor_prefix}{spec.embedding}.weight"


def final_norm_name(spec: ModelSpec) -> str:
    return f"{spec.tensor_prefix}{spec.final_norm}.weight"


def model_tensors(spec: ModelSpec) -> list[TensorMeta]:
    """All tensors of the model. A tied output head has none of its own."""
    shapes: dict[str, Shape] = {embedding_name(spec): (spec.vocab_size, spec.hidden_size)}
    for index, layer in enumerate(spec.layers):
        at = f"{spec.tensor_prefix}layers.{index}"
        shapes |= {f"{at}.{name}": shape for name, shape in layer.tensors(spec.hidden_size)}
    shapes[final_norm_name(spec)] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, spec.hidden_size)
    return [TensorMeta(name=name, dtype=spec.dtype, shape=shape) for name, shape in shapes.items()]
