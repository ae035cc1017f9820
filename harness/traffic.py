"""What one decode step has to move and multiply.

Decode computes one token from the whole model, so a step reads every weight once, reads the cache of every earlier
position, and does about one multiply-add for each weight it reads: far too little arithmetic to hide the reading.
The bytes are therefore the floor of a step's time, and counting them is counting what is READ, not what is resident:

* of the input embedding one row is read;
* a tied output head is read in full every step, though the checkpoint holds no tensor for it;
* an untied head whose tensor the checkpoint lacks is still read (loaders then use the embedding).

Sizes are shape x type of each tensor, from safetensors headers or derived from config.json (`specs.layout`), never
parameters x bits.
"""

import re
from collections.abc import Sequence, Set
from typing import Literal

from harness.errors import CheckpointError
from harness.specs.layout import EMBEDDING, LM_HEAD, layer_linears, model_tensors
from harness.specs.model import ModelSpec
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import TensorMeta, dtype_bytes

# Old checkpoints hold the rotary frequencies as a buffer; every engine computes them.
_NOT_READ = re.compile(r"rotary_emb\.inv_freq$")


def decode_traffic(
    spec: ModelSpec,
    tensors: Sequence[TensorMeta],
    tensors_source: Literal["headers", "config"],
    kv_dtype: str | None = None,
) -> DecodeTraffic:
    """Bytes and FLOP of a step of `spec` over these tensors; kv_dtype (safetensors name) is the weights' by default.

    Raises CheckpointError for a tensor that belongs to no known part, and for a missing embedding.
    """
    embedding = _find(tensors, spec.tensor_prefix + EMBEDDING)
    if embedding is None:
        raise CheckpointError(
            f"no tensor {spec.tensor_prefix + EMBEDDING!r} among {len(tensors)}",
            "check that config.json and weights belong together",
        )
    head = embedding if spec.tie_word_embeddings else _find(tensors, LM_HEAD) or embedding
    known = {tensor.name for tensor in model_tensors(spec)}
    body = sum(tensor.num_bytes for tensor in tensors if _is_body(tensor, spec, known))
    kv_values = 2 * spec.num_layers * spec.kv_size
    return DecodeTraffic(
        tensors_source=tensors_source,
        weight_read_bytes=body + head.num_bytes,
        embedding_row_bytes=embedding.num_bytes // spec.vocab_size,
        kv_bytes_per_context_token=kv_values * dtype_bytes(kv_dtype or spec.dtype),
        resident_weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        linear_flop=linear_flop(spec),
        attention_flop_per_context_token=attention_flop_per_pair(spec),
    )


def linear_flop(spec: ModelSpec, with_head: bool = True) -> int:
    """2 FLOP a multiply-add over all products with weights, for one token."""
    layer = sum(n * k for _, n, k, _ in layer_linears(spec))
    head = spec.vocab_size * spec.hidden_size if with_head else 0
    return 2 * (spec.num_layers * layer + head)


def attention_flop_per_pair(spec: ModelSpec) -> int:
    """QK^T and PV for one query position against one visible position: 4 x head_dim a query head, all layers."""
    return 4 * spec.num_layers * spec.q_size


def prefill_flop(spec: ModelSpec, num_tokens: int) -> int:
    """FLOP of a prompt of n tokens: linears for each, the head for the last, and n (n + 1) / 2 visible pairs."""
    head = 2 * spec.vocab_size * spec.hidden_size
    pairs = num_tokens * (num_tokens + 1) // 2
    return num_tokens * linear_flop(spec, with_head=False) + head + attention_flop_per_pair(spec) * pairs


def _find(tensors: Sequence[TensorMeta], name: str) -> TensorMeta | None:
    return next((tensor for tensor in tensors if tensor.name == name), None)


def _is_body(tensor: TensorMeta, spec: ModelSpec, known: Set[str]) -> bool:
    """Whether a step reads this tensor as part of the layers or the final norm."""
    prefix = spec.tensor_prefix
    if tensor.name in (prefix + EMBEDDING, LM_HEAD) or _NOT_READ.search(tensor.name):
        return False
    if tensor.name in known:
        return True
    raise CheckpointError(
        f"tensor {tensor.name!r} belongs to no part of a {spec.model_type} with {spec.num_layers} layers",
        "check that config.json and weights belong together; its bytes are not guessed",
    )
