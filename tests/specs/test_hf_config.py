"""config.json to spec: each family, each refusal by its field's name."""

from typing import Any

import pytest

from harness.errors import ConfigError
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.mlp import Moe

QWEN3_MOE = {
    "model_type": "qwen3_moe", "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip


QWEN3_5 = {
    "model_type": "qwen3_5", "head_dim": 32, "full_attention_interval": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip


DEEPSEEK = {
    "model_type": "deepseek_v3", "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip


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
    attention, mlp = spec.dense()
    assert (attention.num_heads, attention.head_dim, attention.num_kv_heads) == (4, 16, 2)
    assert (attention.qkv_bias, attention.qk_norm, mlp.intermediate_size) == (False, False, 96)
    assert spec.num_layers == 2
    assert spec.eos_token_ids == (2,)
    assert spec.tensor_prefix == "model."


def test_qwen2_has_biases_on_query_key_and_value_alone() -> None:
    attention, mlp = model_spec_from_hf(config(model_type="qwen2")).dense()
    assert (attention.qkv_bias, attention.o_bias, mlp.bias) == (True, False, False)


def test_qwen3_has_head_norms_and_an_explicit_head_dim() -> None:
    attention, _ = model_spec_from_hf(config(model_type="qwen3", head_dim=128)).dense()
    assert (attention.head_dim, attention.qk_norm) == (128, True)


def test_llama_biases_follow_their_flags() -> None:
    attention, mlp = model_spec_from_hf(config(attention_bias=True, mlp_bias=True)).dense()
    assert (attention.qkv_bias, attention.o_bias, mlp.bias) == (True, True, True)


def test_mixtral_has_experts_in_every_layer() -> None:
    spec = model_spec_from_hf(config(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2))
    (kind,) = spec.kinds
    assert isinstance(kind.mlp, Moe)
    assert (kind.mlp.num_experts, kind.mlp.experts_per_token, kind.mlp.expert.intermediate_size) == (8, 2, 96)
    assert (kind.mlp.names, kind.mlp.shared) == ("block_sparse_moe", None)
    with pytest.raises(ConfigError, match="mixtral is not plain dense"):
        spec.dense()


def test_qwen3_moe_says_which_layers_are_dense() -> None:
    """Every second layer is sparse (the 2nd, 4th, ...), and of those the fourth (index 3) is taken out."""
    changes = {**QWEN3_MOE, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    spec = model_spec_from_hf(config(**changes))
    assert [layer.mlp.kind for layer in spec.layers] == [
        "gated-mlp", "moe", "gated-mlp", "gated-mlp", "gated-mlp", "moe",
    ]  # fmt: skip
    assert len(spec.kinds) == 2
    assert {layer.mixer.qk_norm for layer in spec.layers} == {True}


def test_qwen2_moe_has_a_shared_expert_behind_a_gate() -> None:
    changes = {**QWEN3_MOE, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 40}
    (kind,) = model_spec_from_hf(config(**changes)).kinds
    assert isinstance(kind.mlp, Moe)
    assert kind.mlp.shared is not None
    assert (kind.mlp.shared.intermediate_size, kind.mlp.shared_gate, kind.mixer.qkv_bias) == (40, True, True)


def windows(**changes: Any) -> list[int | None]:
    return [layer.mixer.window for layer in model_spec_from_hf(config(num_hidden_layers=4, **changes)).layers]


def test_windows_as_each_family_says_them() -> None:
    assert windows(model_type="mistral", sliding_window=32) == [32] * 4
    assert windows(model_type="mistral", sliding_window=None) == [None] * 4
    # Qwen: a switch, and the first layer that has the window; a window without the switch does nothing
    switched = {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3, "sliding_window": 32}
    assert windows(**switched) == [None, None, None, 32]
    assert windows(**{**switched, "use_sliding_window": False}) == [None] * 4
    kinds = ["sliding_attention", "full_attention"] * 2
    assert windows(sliding_window=16, layer_types=kinds) == [16, None, 16, None]


def test_hybrid_layers_by_interval_or_by_list() -> None:
    by_interval = model_spec_from_hf(config(**QWEN3_5, num_hidden_layers=4))
    kinds = ["linear_attention", "full_attention"] * 2
    by_list = model_spec_from_hf(config(**QWEN3_5, num_hidden_layers=4, layer_types=kinds))
    assert by_interval == by_list
    assert [layer.mixer.kind for layer in by_list.layers] == ["gated-delta", "attention"] * 2
    full = by_list.layers[1].mixer
    assert isinstance(full, Attention)
    assert (full.output_gate, full.qk_norm, by_list.rotary_frac) == (True, True, 0.25)


def test_the_states_type_is_fp32_unless_the_config_says_otherwise() -> None:
    for given, kept in ((..., "F32"), ("bfloat16", "BF16")):
        mixer = model_spec_from_hf(config(**QWEN3_5, mamba_ssm_dtype=given)).layers[0].mixer
        assert isinstance(mixer, GatedDelta)
        assert mixer.state_dtype == kept


def test_what_a_wrapper_has_beside_its_text_is_not_read() -> None:
    text = config(**QWEN3_5, mtp_num_hidden_layers=1)
    plain, wrapped = model_spec_from_hf(text), model_spec_from_hf({"text_config": text, "vision_config": {"depth": 2}})
    assert plain.not_read == ("mtp.",)
    assert {"model.visual.", "visual.", "model.vision_tower.", "multi_modal_projector.", "mtp."} <= {*wrapped.not_read}
    assert model_spec_from_hf(config()).not_read == ()


@pytest.mark.parametrize("nested", [True, False])
def test_quantization_is_found_inside_or_outside_the_text_config(nested: bool) -> None:
    how = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    wrapper = {"text_config": config(**how)} if nested else {"text_config": config(), **how}
    spec = model_spec_from_hf(wrapper)
    assert spec.quantization == "gptq"
    with pytest.raises(ConfigError, match="quantized"):
        spec.dense()


def test_a_head_that_turns_in_part_is_not_plain_dense() -> None:
    spec = model_spec_from_hf(config(partial_rotary_factor=0.5))
    assert spec.rotary_frac == 0.5
    with pytest.raises(ConfigError, match="plain dense"):
        spec.dense()


def test_deepseek_has_dense_layers_first_and_shared_experts_as_one() -> None:
    spec = model_spec_from_hf(config(**DEEPSEEK, num_hidden_layers=3, num_nextn_predict_layers=1))
    assert [layer.mlp.kind for layer in spec.layers] == ["gated-mlp", "moe", "moe"]
    moe = spec.layers[1].mlp
    assert isinstance(moe, Moe)
    assert moe.shared is not None
    assert (moe.shared.intermediate_size, moe.shared_gate, moe.router_correction) == (48, False, True)
    assert spec.layers[0].mixer.kv_values == 16 + 8
    assert spec.not_read == ("model.layers.3.",)


def test_a_draft_head_of_no_layers_is_none() -> None:
    assert model_spec_from_hf(config(**QWEN3_5, mtp_num_hidden_layers=0)).not_read == ()
    assert model_spec_from_hf(config(**DEEPSEEK, num_nextn_predict_layers=0)).not_read == ()


GEMMA = {"hidden_act": ..., "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "tie_word_embeddings": ...}


def test_gemmas_windows_norms_and_tied_head() -> None:
    gemma2 = model_spec_from_hf(config(**GEMMA, model_type="gemma2", num_hidden_layers=4, sliding_window=8))
    assert [layer.mixer.window for layer in gemma2.layers] == [8, None, 8, None]
    gemma3 = model_spec_from_hf(config(**GEMMA, model_type="gemma3_text", num_hidden_layers=7, sliding_window=8))
    assert [layer.mixer.window for layer in gemma3.layers] == [8] * 5 + [None, 8]
    assert gemma2.tie_word_embeddings, "transformers' default there, which Gemma's configs leave out"
    assert len(gemma2.kinds[0].norms) == 4
    with pytest.raises(ConfigError, match="activation"):
        gemma2.model_copy(update={"kinds": gemma2.kinds[1:], "pattern": (0, 0)}).dense()


def test_gemma_3_has_an_angle_for_each_kind_of_layer() -> None:
    angles = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6, "rope_type": "default"}}
    spec = model_spec_from_hf(config(**GEMMA, model_type="gemma3_text", sliding_window=8, rope_parameters=angles))
    assert (spec.rope_theta, spec.rope_scaling) == (1e6, None)


def test_a_window_is_not_plain_dense() -> None:
    with pytest.raises(ConfigError, match="window"):
        model_spec_from_hf(config(model_type="mistral", sliding_window=32)).dense()


def test_without_kv_heads_each_head_has_its_own() -> None:
    assert model_spec_from_hf(config(num_key_value_heads=...)).dense()[0].num_kv_heads == 4


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
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "num_experts_per_tok"),
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "mixtral", "num_local_experts": 10**9, "num_experts_per_tok": 2}, "num_local_experts"),
        (
            {"model_type": "mixtral", "num_local_experts": 9999, "num_experts_per_tok": 2, "num_hidden_layers": 9999},
            "num_local_experts",
        ),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window"),
        ({"model_type": "qwen3_moe", "head_dim": 16}, "moe_intermediate_size"),
        ({**QWEN3_5, "linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({**QWEN3_5, "linear_conv_kernel_dim": ...}, "linear_conv_kernel_dim"),
        ({**QWEN3_5, "mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype"),
        ({**QWEN3_5, "full_attention_interval": ...}, "full_attention_interval"),
        ({**QWEN3_5, "layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"model_type": "deepseek_v2"}, "moe_intermediate_size"),
        ({**DEEPSEEK, "kv_lora_rank": ...}, "kv_lora_rank"),
        ({**DEEPSEEK, "q_lora_rank": 0}, "q_lora_rank"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq"),
        ({**DEEPSEEK, "attention_bias": True}, "attention_bias"),
        ({**DEEPSEEK, "first_k_dense_replace": -1}, "first_k_dense_replace"),
        ({"model_type": "gemma2", "head_dim": 32}, "hidden_activation"),
        ({"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"}, "head_dim"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor"),
        ({**QWEN3_MOE, "mlp_only_layers": "0"}, "mlp_only_layers"),
        ({**QWEN3_MOE, "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({**QWEN3_MOE, "model_type": "qwen2_moe"}, "shared_expert_intermediate_size"),
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
        ({"use_sliding_window": True}, "max_window_layers"),
        ({"use_sliding_window": True, "max_window_layers": 1}, "sliding_window"),
        ({"use_sliding_window": 1}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"quantization_config": "gptq"}, "quantization_config"),
        ({"quantization_config": {"quant_method": 4}}, "quantization_config"),
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
