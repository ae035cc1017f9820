"""config.json to spec: each family, each refusal by its field's name."""

from typing import Any

import pytest

from harness.errors import ConfigError
from harness.specs.hf_config import model_spec_from_hf


def config(**changes: Any) -> dict[str, Any]:
    base = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "eos_token_id": 2,
    }  # fmt: skip
    merged = base | changes
    return {key: value for key, value in merged.items() if value is not ...}


def test_llama() -> None:
    spec = model_spec_from_hf(config())
    assert (spec.head_dim, spec.num_kv_heads, spec.qkv_bias, spec.qk_norm) == (16, 2, False, False)
    assert spec.eos_token_ids == (2,)
    assert spec.tensor_prefix == "model."


def test_qwen2_has_biases_on_query_key_and_value_alone() -> None:
    spec = model_spec_from_hf(config(model_type="qwen2"))
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, False, False)


def test_qwen3_has_head_norms_and_an_explicit_head_dim() -> None:
    spec = model_spec_from_hf(config(model_type="qwen3", head_dim=128))
    assert (spec.head_dim, spec.qk_norm) == (128, True)


def test_llama_biases_follow_their_flags() -> None:
    spec = model_spec_from_hf(config(attention_bias=True, mlp_bias=True))
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, True, True)


def test_without_kv_heads_each_head_has_its_own() -> None:
    assert model_spec_from_hf(config(num_key_value_heads=...)).num_kv_heads == 4


def test_nested_text_config_inherits_what_only_the_wrapper_says() -> None:
    text = config(model_type="qwen3_text", head_dim=32, torch_dtype=..., tie_word_embeddings=...)
    wrapper = {"model_type": "some_vl", "dtype": "bfloat16", "tie_word_embeddings": True, "text_config": text}
    spec = model_spec_from_hf(wrapper)
    assert (spec.model_type, spec.dtype, spec.tie_word_embeddings) == ("qwen3", "BF16", True)
    assert spec.tensor_prefix == "model.language_model."


def test_rope_of_transformers_5_and_of_older_ones() -> None:
    new = model_spec_from_hf(config(rope_theta=..., rope_parameters={"rope_theta": 5e5, "rope_type": "default"}))
    assert (new.rope_theta, new.rope_scaling) == (5e5, None)
    scaling = {"rope_type": "llama3", "factor": 8.0}
    old = model_spec_from_hf(config(rope_theta=5e5, rope_scaling=scaling))
    assert (old.rope_theta, old.rope_scaling) == (5e5, scaling)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "mixtral"}, "model_type"),
        ({"model_type": ...}, "model_type"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": "32"}, "num_attention_heads"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": ...}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"torch_dtype": ...}, "dtype"),
        ({"torch_dtype": "int8"}, "dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 65}, "head_dim"),
        ({"model_type": "qwen3"}, "head_dim"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"head_dim": 33}, "head_dim"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_parameters": 5}, "rope_parameters"),
        ({"layer_types": 3}, "layer_types"),
        ({"layer_types": [[1], 3]}, "layer_types"),
        ({"torch_dtype": ["x"]}, "dtype"),
        ({"torch_dtype": {}}, "dtype"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
    ],
)
def test_refusals_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field) as fault:
        model_spec_from_hf(config(**changes), "some/config.json")
    assert "some/config.json" in fault.value.what
    assert fault.value.mend
