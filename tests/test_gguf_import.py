"""GGUF to Hugging Face: names, shapes, row order, rounding, configuration and tokenizer."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_files import (
    CONTROL,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    QUANTIZED,
    TOKENS,
    VOCAB,
    gguf,
    make_weights,
    tokenizers,
    write_gguf,
)
from numpy.typing import NDArray
from safetensors import deserialize

from harness.checkpoint import SINGLE, open_checkpoint
from harness.gguf_import import convert_gguf
from harness.gguf_import.weights import bf16_bits
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import model_tensors


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", types=QUANTIZED), folder, origin="a test")
    return folder


def read_bits(folder: Path) -> dict[str, NDArray[np.uint16]]:
    """Tensor name -> bf16 bit patterns, read by the safetensors library."""
    return {
        name: np.frombuffer(tensor["data"], np.uint16).reshape(tensor["shape"])
        for name, tensor in deserialize((folder / SINGLE).read_bytes())
    }


# --- weights ------------------------------------------------------------------------------------------------


def test_tensors_are_those_of_the_config(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    spec = model_spec_from_hf(config)
    held = {tensor.name: tensor for tensor in open_checkpoint(converted).tensors}
    assert held == {tensor.name: tensor for tensor in model_tensors(spec)}
    assert held["model.layers.1.mlp.down_proj.weight"].shape == (64, 96)


def rounded(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """To the nearer bf16 neighbour by float64, in which both distances are exact; ties to the even one."""
    low_bits = values.view(np.uint32) & np.uint32(0xFFFF0000)
    low = low_bits.view(np.float32).astype(np.float64)
    high = (low_bits + np.uint32(0x10000)).view(np.float32).astype(np.float64)
    below, above = np.abs(values - low), np.abs(high - values)
    is_low_even = (low_bits >> 16) % 2 == 0
    return np.where((below < above) | ((below == above) & is_low_even), low, high)


def as_floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def permuted(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Hugging Face's rows in llama.cpp's order, row by row: a head's pair i goes to places 2i and 2i + 1."""
    half = weight.shape[0] // num_heads // 2
    rows = []
    for head in range(num_heads):
        for pair in range(half):
            rows += [weight[head * 2 * half + pair], weight[head * 2 * half + pair + half]]
    return np.stack(rows)


def hf_values(name: str, seed: int) -> NDArray[np.float32]:
    """What a Hugging Face checkpoint would hold of this tensor."""
    return np.random.default_rng(seed).normal(size=make_weights()[name].shape).astype(np.float32)


def test_query_and_key_rows_go_back(tmp_path: Path) -> None:
    q, k = hf_values("blk.0.attn_q.weight", 1), hf_values("blk.1.attn_k.weight", 2)
    assert q.shape[0] == HEADS * HEAD_DIM and k.shape[0] == KV_HEADS * HEAD_DIM
    weights = make_weights()
    weights["blk.0.attn_q.weight"] = permuted(q, HEADS)
    weights["blk.1.attn_k.weight"] = permuted(k, KV_HEADS)
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", weights=weights), tmp_path / "tiny")
    bits = read_bits(tmp_path / "tiny")
    assert np.array_equal(as_floats(bits["model.layers.0.self_attn.q_proj.weight"]), rounded(q))
    assert np.array_equal(as_floats(bits["model.layers.1.self_attn.k_proj.weight"]), rounded(k))


UNMOVED = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
    "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
    "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
    "blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight",
    "blk.1.attn_output.weight": "model.layers.1.self_attn.o_proj.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.1.ffn_norm.weight": "model.layers.1.post_attention_layernorm.weight",
}


def test_other_tensors_keep_their_rows(converted: Path) -> None:
    bits, weights = read_bits(converted), make_weights()
    for theirs, ours in UNMOVED.items():
        kind = QUANTIZED.get(theirs, gguf.GGMLQuantizationType.F32)
        values = gguf.dequantize(gguf.quantize(weights[theirs], kind), kind)
        assert np.array_equal(as_floats(bits[ours]), rounded(values)), ours
        step = {"Q4_1": 0.5, "Q8_0": 0.05}.get(kind.name, 0.02)
        assert np.abs(as_floats(bits[ours]) - weights[theirs]).max() < step, ours


def test_bf16_rounding() -> None:
    cases = {
        0x3F800000: 0x3F80,  # 1
        0x3F807FFF: 0x3F80,  # just under the middle
        0x3F808000: 0x3F80,  # the middle: down to even
        0x3F808001: 0x3F81,  # just over
        0x3F818000: 0x3F82,  # the middle: up to even
        0xBF818000: 0xBF82,
        0x3FFFFFFF: 0x4000,  # carries into the exponent
        0x00000000: 0x0000,
        0x80000000: 0x8000,  # minus zero
        0x00008001: 0x0001,  # subnormal
        0x7F7F7FFF: 0x7F7F,  # the largest that stays finite
        0x7F7FFFFF: 0x7F80,  # the largest float32: to infinity, as IEEE rounds
    }
    values = np.array(list(cases), np.uint32).view(np.float32)
    assert bf16_bits(values).tolist() == list(cases.values())
    random = np.random.default_rng(3)
    values = (random.normal(size=20_000) * 10.0 ** random.integers(-30, 30, 20_000)).astype(np.float32)
    assert np.array_equal(as_floats(bf16_bits(values)), rounded(values))


def test_an_output_head_of_its_own(tmp_path: Path) -> None:
    weights = make_weights()
    weights["output.weight"] = hf_values("token_embd.weight", 5)
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", weights=weights), tmp_path / "tiny")
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["tie_word_embeddings"] is False
    head = as_floats(read_bits(tmp_path / "tiny")["lm_head.weight"])
    assert np.array_equal(head, rounded(weights["output.weight"]))


# --- JSON files ---------------------------------------------------------------------------------------------


def test_config(converted: Path) -> None:
    assert json.loads((converted / "config.json").read_text()) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-05,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def test_source_and_tokenizer_config(converted: Path) -> None:
    source = json.loads((converted / "source.json").read_text())
    digest = subprocess.run(["sha256sum", converted.parents[1] / "tiny.gguf"], capture_output=True, text=True).stdout
    assert source["gguf_sha256"] == digest.split()[0]
    assert (source["origin"], source["license"]) == ("a test", "apache-2.0")
    assert source["gguf_tensor_types"] == {"Q8_0": 2, "Q4_1": 2, "F32": 16}
    config = json.loads((converted / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages[0]['content'] }}"
    names = ("unk_token", "bos_token", "eos_token", "pad_token")
    assert [config[name] for name in names] == [*CONTROL, CONTROL[2]]


TEXTS = [
    "the cat, the hat;  and\tthe\nrest",
    "12 345.67",
    "中文：你好，世界",
    "🎉 👩‍👩‍👧 naïve ﷽",
    " leading",
    "\x00\x7f",
]


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trip(converted: Path, text: str) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_tokenizer_pieces(converted: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.get_vocab() == {token: number for number, token in enumerate(TOKENS)}
    assert tokenizer.encode("the the").tokens == ["the", "\u0120the"]
    assert tokenizer.encode("12").tokens == ["1", "2"]
    chat = tokenizer.encode("<|im_start|>the<|im_end|>")
    assert chat.tokens == ["<|im_start|>", "the", "<|im_end|>"]
    assert chat.ids[0] == 1 and chat.ids[2] == 2
    assert tokenizer.decode(chat.ids) == "the"


def test_torch_is_not_needed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from harness.gguf_import import convert_gguf\n"
        "convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, str(path), str(tmp_path / "tiny")], check=True)
    assert open_checkpoint(tmp_path / "tiny").tensors
