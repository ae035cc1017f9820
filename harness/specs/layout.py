"""The tensors that a decoder keeps, derived from its spec: names, types and shapes as in its checkpoint.

Stands in for safetensors headers where only a config.json is at hand, and is what a checkpoint is held against.
"""

from harness.specs.model import ModelSpec
from harness.specs.parts.product import Shape
from harness.specs.tensor import TensorMeta

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"


def model_tensors(spec: ModelSpec) -> list[TensorMeta]:
    """All tensors of the model. A tied output head has none of its own."""
    prefix = spec.tensor_prefix
    shapes: dict[str, Shape] = {prefix + EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    for index, layer in enumerate(spec.layers):
        shapes |= {f"{prefix}layers.{index}.{name}": shape for name, shape in layer.tensors(spec.hidden_size)}
    shapes[f"{prefix}norm.weight"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, spec.hidden_size)
    return [TensorMeta(name=name, dtype=spec.dtype, shape=shape) for name, shape in shapes.items()]
