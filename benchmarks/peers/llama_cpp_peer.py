"""llama.cpp through its Python package, on a bf16 GGUF of the same shape, written here with random weights."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from llama_cpp import Llama
from prompt import prompt_ids

# Its fused attention was the faster one here; weights in memory of its own, since the file goes when it is loaded.
BEST = {"flash_attn": True, "use_mmap": False, "verbose": False}


def open_peer(folder: str, tokens: int) -> Callable[[], float]:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "model.gguf"
        write_random_gguf(json.loads((Path(folder) / "config.json").read_text()), file)
        threads = len(os.sched_getaffinity(0))
        llm = Llama(str(file), n_ctx=1024, n_threads=threads, n_threads_batch=threads, **BEST)

    def block() -> float:
        llm.reset()
        llm.eval(prompt_ids())
        started = time.perf_counter()
        for index in range(tokens):
            llm.eval([index])
        return (time.perf_counter() - started) / tokens

    return block


def write_random_gguf(config: dict[str, Any], file: Path) -> None:
    """A Qwen3 without a vocabulary: token ids go in, logits come out."""
    hidden, layers, ffn = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    writer = GGUFWriter(str(file), "qwen3")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

    def norm(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    def weight(name: str, n: int, k: int) -> None:
        values = np.random.default_rng(0).standard_normal((n, k), dtype=np.float32) * np.float32(0.02)
        bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
        writer.add_tensor(f"{name}.weight", bf16.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)

    weight("token_embd", config["vocab_size"], hidden)
    norm("output_norm", hidden)
    for layer in (f"blk.{index}" for index in range(layers)):
        norm(f"{layer}.attn_norm", hidden)
        norm(f"{layer}.attn_q_norm", width)
        norm(f"{layer}.attn_k_norm", width)
        norm(f"{layer}.ffn_norm", hidden)
        weight(f"{layer}.attn_q", heads * width, hidden)
        weight(f"{layer}.attn_k", kv_heads * width, hidden)
        weight(f"{layer}.attn_v", kv_heads * width, hidden)
        weight(f"{layer}.attn_output", hidden, heads * width)
        weight(f"{layer}.ffn_gate", ffn, hidden)
        weight(f"{layer}.ffn_up", ffn, hidden)
        weight(f"{layer}.ffn_down", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
