"""A llama of two layers as a GGUF, small enough for each test to make its own. Used by test_gguf_*.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

gguf = pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# "1 2" must never be used: digits are cut apart before merging.
MERGES = ["t h", "th e", "\u0120 the", "1 2"]
TOKENS = [
    *CONTROL,
    *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
]
VOCAB = len(TOKENS)

KEYS: dict[str, Any] = {
    "general.name": "Tiny",
    "general.license": "apache-2.0",
    "llama.block_count": LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INTER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.rope.freq_base": 100000.0,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [
        int(gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL) for token in TOKENS
    ],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_space_prefix": False,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}

Weights = dict[str, NDArray[np.float32]]
Types = dict[str, Any]

QUANTIZED: Types = {
    "token_embd.weight": gguf.GGMLQuantizationType.Q8_0,
    "blk.0.attn_q.weight": gguf.GGMLQuantizationType.Q8_0,
    "blk.0.ffn_up.weight": gguf.GGMLQuantizationType.Q4_1,
    "blk.1.attn_k.weight": gguf.GGMLQuantizationType.Q4_1,
}


def make_weights(seed: int = 0) -> Weights:
    """Random values under GGUF's names, rows in GGUF's order."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (INTER, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INTER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INTER),
        }
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    keys: dict[str, Any] | None = None,
    weights: Weights | None = None,
    types: Types | None = None,
    architecture: str = "llama",
) -> Path:
    """The tiny GGUF with some keys changed (None leaves one out); tensors are F32 if `types` says nothing."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**KEYS, **(keys or {})}.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, values in (make_weights() if weights is None else weights).items():
        kind = (types or {}).get(name, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
