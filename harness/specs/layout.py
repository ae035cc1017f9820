"""The tensors that a dense decoder keeps, derived from its spec: names, types and shapes as in its checkpoint.

Stands in for safetensors headers where only a config.json is at hand, and is what a checkpoint is held against.
"""

from collections.abc import Iterator

from harness.specs.model import ModelSpec
from harness.specs.tensor import TensorMeta

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def model_tensors(spec: ModelSpec) -> list[TensorMeta]:
    """All tensors of the model. A tied output head has none of its own."""
    prefix = spec.tensor_prefix
    shapes: dict[str, Shape] = {prefix + EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    for layer in range(spec.num_layers):
        shapes |= {f"{prefix}layers.{layer}.{name}": shape for name, shape in layer_shapes(spec)}
    shapes[f"{prefix}norm.weight"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, spec.hidden_size)
    return [TensorMeta(name=name, dtype=spec.dtype, shape=shape) for name, shape in shapes.items()]


def layer_shapes(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    """Names and shapes within one layer."""
    for name, n, k, bias in layer_linears(spec):
        yield f"{name}.weight", (n, k)
        if bias:
            yield f"{name}.bias", (n,)
    if spec.qk_norm:
        yield "self_attn.q_norm.weight", (spec.head_dim,)
        yield "self_attn.k_norm.weight", (spec.head_dim,)
    yield "input_layernorm.weight", (spec.hidden_size,)
    yield "post_attention_layernorm.weight", (spec.hidden_size,)


def layer_linears(spec: ModelSpec) -> list[tuple[str, int, int, bool]]:
    """(name, output features, input features, bias) of one layer's seven products with weights."""
    hidden, inter = spec.hidden_size, spec.intermediate_size
    return [
        ("self_attn.q_proj", spec.q_size, hidden, spec.qkv_bias),
        ("self_attn.k_proj", spec.kv_size, hidden, spec.qkv_bias),
        ("self_attn.v_proj", spec.kv_size, hidden, spec.qkv_bias),
        ("self_attn.o_proj", hidden, spec.q_size, spec.o_bias),
        ("mlp.gate_proj", inter, hidden, spec.mlp_bias),
        ("mlp.up_proj", inter, hidden, spec.mlp_bias),
        ("mlp.down_proj", hidden, inter, spec.mlp_bias),
    ]
