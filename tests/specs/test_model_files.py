"""The configurations under configs/models: the right shapes, shown by the published parameter counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.specs.hf_config import model_spec_from_hf

FOLDER = Path(__file__).resolve().parents[2] / "configs/models"

# Parameters of the model that runs, as transformers counts them: a tied head once.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
}
# Hugging Face's totals add up the checkpoint's headers. They are higher where a file holds the tied head
# twice (Qwen3-0.6B and 1.7B), or rotary frequencies, 64 a layer (Llama-2).
IN_CHECKPOINT = {
    "llama-2-7b": 6_738_417_664,
    "llama-2-13b": 13_015_866_880,
    "llama-2-70b": 68_976_653_312,
    "qwen3-0.6b": 751_632_384,
    "qwen3-1.7b": 2_031_739_904,
}
FIELDS = {
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
    "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "tie_word_embeddings",
    "bos_token_id", "eos_token_id", "torch_dtype",
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / name / "config.json").read_text())
    return data


def num_parameters(c: dict[str, Any]) -> int:
    """Counted from the config alone, on purpose without the package's own layout."""
    hidden, head_dim = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    attention = hidden * q + 2 * hidden * kv + q * hidden
    if c["model_type"] == "qwen2":
        attention += q + 2 * kv  # biases of query, key and value, whatever the config says
    if c["model_type"] == "qwen3":
        attention += 2 * head_dim  # norms of query and key heads
    mlp = 3 * hidden * c["intermediate_size"]
    embedding = c["vocab_size"] * hidden
    head = 0 if c["tie_word_embeddings"] else embedding
    total: int = embedding + c["num_hidden_layers"] * (attention + mlp + 2 * hidden) + hidden + head
    return total


@pytest.mark.parametrize("name", PUBLISHED)
def test_fields(name: str) -> None:
    fields = set(config(name))
    assert fields >= FIELDS
    # Qwen2 has no such switches; the others say that they have no biases.
    assert fields - FIELDS <= {"attention_bias", "mlp_bias"}
    assert ("attention_bias" in fields) == (not name.startswith("qwen2.5"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert num_parameters(config(name)) == PUBLISHED[name]


@pytest.mark.parametrize("name", IN_CHECKPOINT)
def test_what_the_checkpoint_holds_beyond_the_model(name: str) -> None:
    c = config(name)
    copied_head = c["vocab_size"] * c["hidden_size"] if c["tie_word_embeddings"] else 0
    rotary = c["num_hidden_layers"] * c["head_dim"] // 2 if name.startswith("llama-2") else 0
    assert PUBLISHED[name] + copied_head + rotary == IN_CHECKPOINT[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_package_reads_it(name: str) -> None:
    c = config(name)
    spec = model_spec_from_hf(c, name)
    attention, mlp = spec.dense()
    assert (attention.num_heads, attention.head_dim) == (c["num_attention_heads"], c["head_dim"])
    assert attention.num_kv_heads == c["num_key_value_heads"]
    assert attention.qkv_bias == (c["model_type"] == "qwen2")
    assert (spec.num_layers, mlp.intermediate_size) == (c["num_hidden_layers"], c["intermediate_size"])
    assert spec.eos_token_ids == (c["eos_token_id"],)
    assert spec.dtype == ("F16" if name.startswith("llama-2") else "BF16")


def test_head_dim_is_not_always_hidden_size_over_heads() -> None:
    explicit = {
        name for name in PUBLISHED if (c := config(name))["head_dim"] * c["num_attention_heads"] != c["hidden_size"]
    }
    assert explicit == {"qwen3-0.6b", "qwen3-4b", "qwen3-32b"}
