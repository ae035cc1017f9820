"""What one decode step has to move and multiply.

Decode computes one token from the whole model, so a step reads every weight once, reads the cache of every earlier
position, and does about one multiply-add for each weight it reads: far too little arithmetic to hide the reading.
The bytes are therefore the floor of a step's time, and counting them is counting what is READ, not what is resident:

* of the input embedding one row is read;
* a tied output head is read in full every step, though the checkpoint holds no tensor for it;
* an untied head whose tensor the checkpoint lacks is still read (loaders then use the embedding);
* of a mixture's experts the few that the token is routed to.

Sizes are shape x type of each tensor, from safetensors headers or derived from config.json (`specs.layout`), never
parameters x bits.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from harness.errors import CheckpointError
from harness.specs.layout import embedding_name, final_norm_name, head_name
from harness.specs.model import ModelSpec
from harness.specs.parts.mlp import Routed
from harness.specs.step import DecodeTraffic, RoutedExperts, SlidingCache
from harness.specs.tensor import TensorMeta, dtype_bytes

# Old checkpoints hold the rotary frequencies as a buffer; every engine computes them.
_NOT_READ = re.compile(r"rotary_emb\.inv_freq$")

# What stands for `weight`, or beside it, in GPTQ and AWQ (first line), compressed-tensors, fp8 and nvfp4 checkpoints.
# All of it is read with the weight: packed int32, zero points and scales count as they lie in the file.
_PACKED_PARTS = {
    "qweight", "qzeros", "scales", "g_idx",
    "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale",
    "weight_scale_inv", "weight_scale_2", "input_scale", "input_global_scale", "k_scale", "v_scale",
}  # fmt: skip


def decode_traffic(
    spec: ModelSpec,
    tensors: Sequence[TensorMeta],
    tensors_source: Literal["headers", "config"],
    kv_dtype: str | None = None,
) -> DecodeTraffic:
    """Bytes and FLOP of a step of `spec` over these tensors; kv_dtype (safetensors name) is the weights' by default.

    Raises CheckpointError for a tensor that belongs to no known part, and for a missing embedding.
    """
    embedding = _find(tensors, embedding_name(spec))
    if embedding is None:
        raise CheckpointError(
            f"no tensor {embedding_name(spec)!r} among {len(tensors)}",
            "check that config.json and weights belong together",
        )
    head = embedding if spec.tie_word_embeddings else _find(tensors, head_name(spec)) or embedding
    read = _read_fracs(spec)
    parts = [(tensor, _read_frac(tensor, spec, read)) for tensor in tensors]
    body = sum(tensor.num_bytes * frac for tensor, frac in parts if frac)
    kv_values = sum(layer.mixer.kv_values for layer in spec.layers)
    value_bytes = dtype_bytes(kv_dtype or spec.dtype)
    state_bytes = sum(layer.mixer.state_bytes(value_bytes) for layer in spec.layers)
    return DecodeTraffic(
        tensors_source=tensors_source,
        weight_read_bytes=round(body) + head.num_bytes,
        routed_experts=_routed_experts(spec, parts),
        embedding_row_bytes=embedding.num_bytes // spec.vocab_size,
        kv_bytes_per_context_token=kv_values * value_bytes,
        sliding_caches=_sliding_caches(spec, value_bytes),
        state_read_bytes=state_bytes,
        state_write_bytes=state_bytes,
        resident_weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        linear_flop=linear_flop(spec),
        attention_flop_per_context_token=attention_flop_per_pair(spec),
        state_flop=state_flop(spec),
    )


def _routed_experts(spec: ModelSpec, parts: Sequence[tuple[TensorMeta, Fraction]]) -> tuple[RoutedExperts, ...]:
    """Layers with the same numbers of experts together; a tensor that one token reads in part is its experts'."""
    mixtures = {str(index): layer.mlp for index, layer in enumerate(spec.layers) if isinstance(layer.mlp, Routed)}
    num_bytes = Counter[tuple[int, int]]()
    for tensor, frac in parts:
        if frac.denominator > 1:
            mixture = mixtures[tensor.name.removeprefix(f"{spec.tensor_prefix}layers.").partition(".")[0]]
            num_bytes[mixture.num_experts, mixture.experts_per_token] += tensor.num_bytes
    return tuple(
        RoutedExperts(num_experts=experts, experts_per_token=chosen, num_bytes=total)
        for (experts, chosen), total in sorted(num_bytes.items())
    )


def _sliding_caches(spec: ModelSpec, value_bytes: int) -> tuple[SlidingCache, ...]:
    """Layers with the same window together, the shortest first."""
    mixers = [layer.mixer for layer in spec.layers if layer.mixer.window is not None]
    return tuple(
        SlidingCache(
            window=window,
            bytes_per_context_token=sum(mixer.kv_values for mixer in mixers if mixer.window == window) * value_bytes,
            flop_per_context_token=sum(mixer.flop_per_pair for mixer in mixers if mixer.window == window),
        )
        for window in sorted({mixer.window for mixer in mixers if mixer.window is not None})
    )


def linear_flop(spec: ModelSpec, with_head: bool = True) -> int:
    """2 FLOP a multiply-add over all products with weights, for one token."""
    layers = sum(p.n * p.k for layer in spec.layers for p in layer.products(spec.hidden_size))
    head = spec.vocab_size * spec.hidden_size if with_head else 0
    return 2 * (layers + head)


def attention_flop_per_pair(spec: ModelSpec) -> int:
    """QK^T and PV for one query position against one visible position, all layers."""
    return sum(layer.mixer.flop_per_pair for layer in spec.layers)


def state_flop(spec: ModelSpec) -> int:
    """What one token does with recurrent and convolution state, all layers."""
    return sum(layer.mixer.state_flop for layer in spec.layers)


class PromptFlop(NamedTuple):
    """Of positions that are taken in together, by what they grow with."""

    linear: int
    """Products with weights: with the positions."""
    attention: int
    """Visible pairs of positions: with their square, and with what came before."""
    state: int
    """Recurrent and convolution state: with the positions."""


def chunk_flop(spec: ModelSpec, begin: int, end: int) -> PromptFlop:
    """FLOP of positions begin <= i < end of a prompt, without the output head."""
    num_tokens = end - begin
    pairs = ((layer.mixer, layer.mixer.num_pairs(end) - layer.mixer.num_pairs(begin)) for layer in spec.layers)
    return PromptFlop(
        linear=num_tokens * linear_flop(spec, with_head=False),
        attention=sum(mixer.prefill_flop_per_pair * num_pairs for mixer, num_pairs in pairs),
        state=num_tokens * state_flop(spec),
    )


def prompt_flop(spec: ModelSpec, num_tokens: int) -> PromptFlop:
    """FLOP of a whole prompt: the head for its last position alone."""
    flop = chunk_flop(spec, 0, num_tokens)
    return flop._replace(linear=flop.linear + 2 * spec.vocab_size * spec.hidden_size)


def prefill_flop(spec: ModelSpec, num_tokens: int) -> int:
    """FLOP of a prompt of n tokens: linears for each, the head for the last, and every visible pair."""
    return sum(prompt_flop(spec, num_tokens))


def _find(tensors: Sequence[TensorMeta], name: str) -> TensorMeta | None:
    return next((tensor for tensor in tensors if tensor.name == name), None)


def _read_fracs(spec: ModelSpec) -> dict[str, Fraction]:
    """What part of each tensor one token reads, for the tensors of the layers and the final norm."""
    fracs = {final_norm_name(spec): Fraction(1)}
    for index, layer in enumerate(spec.layers):
        at = f"{spec.tensor_prefix}layers.{index}."
        fracs |= {at + name: layer.mlp.read_frac(name) for name, _ in layer.tensors(spec.hidden_size)}
    return fracs


def packed_weight(name: str) -> str:
    """The weight that a packed or scaled checkpoint keeps in parts, of which this is one; another name as it is.

    mxfp4 keeps a stack of experts as <name>_blocks, two 4-bit values a byte, and <name>_scales, one for each 32 values.
    """
    module, _, part = name.rpartition(".")
    return f"{module}.weight" if part in _PACKED_PARTS else re.sub("_(blocks|scales)$", "", name)


def _read_frac(tensor: TensorMeta, spec: ModelSpec, known: Mapping[str, Fraction]) -> Fraction:
    """0 for the embedding and the head, which are counted apart, for what every engine computes anew, and for towers
    and drafts that decoding does not use."""
    if tensor.name in (embedding_name(spec), head_name(spec)) or _NOT_READ.search(tensor.name):
        return Fraction(0)
    if tensor.name.startswith(spec.not_read):
        return Fraction(0)
    name = packed_weight(tensor.name) if spec.quantization and tensor.name not in known else tensor.name
    if name in known:
        return known[name]
    raise CheckpointError(
        f"tensor {tensor.name!r} belongs to no part of a {spec.model_type} with {spec.num_layers} layers",
        "check that config.json and weights belong together; its bytes are not guessed",
    )
