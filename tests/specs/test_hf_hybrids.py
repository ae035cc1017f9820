"""config.json to spec: hybrids with Mamba layers, each refusal by its field's name."""

from typing import Any

import pytest

from harness.errors import ConfigError
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import model_tensors
from harness.specs.parts.mamba1 import Mamba1
from harness.specs.parts.mamba2 import Mamba2

NEMOTRON = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-*E", "num_hidden_layers": 4, "mlp_hidden_act": "relu2",
    "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "layer_norm_epsilon": 1e-5,
    "moe_shared_expert_intermediate_size": 40,
}  # fmt: skip

JAMBA = {
    "model_type": "jamba", "num_hidden_layers": 8, "hidden_act": "silu", "attn_layer_period": 4, "attn_layer_offset": 2,
    "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8, "rms_norm_eps": 1e-6,
}  # fmt: skip

BAMBA = {
    "model_type": "bamba", "num_hidden_layers": 4, "hidden_act": "silu", "attn_layer_indices": [2],
    "mamba_n_heads": 16, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def config(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A family's small model, fields changed or (...) left out."""
    shared = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 100, "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return {key: value for key, value in {**shared, **base, **changes}.items() if value is not ...}


def test_nemotron_h_has_one_part_a_layer() -> None:
    spec = model_spec_from_hf(config(NEMOTRON))
    parts = [(layer.mixer.kind, layer.mlp.kind) for layer in spec.layers]
    assert parts == [
        ("mamba2", "no-mlp"), ("no-mixer", "plain-mlp"), ("attention", "no-mlp"), ("no-mixer", "moe"),
    ]  # fmt: skip
    assert [layer.mixer.window for layer in spec.layers] == [None] * 4
    assert (spec.tensor_prefix, spec.rms_norm_eps, spec.rotary_frac) == ("backbone.", 1e-5, 0.0)
    with pytest.raises(ConfigError, match="plain dense"):
        spec.dense()


def test_nemotron_hs_checkpoint_has_names_of_its_own() -> None:
    names = {tensor.name for tensor in model_tensors(model_spec_from_hf(config(NEMOTRON)))}
    assert names >= {
        "backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight", "backbone.layers.0.norm.weight",
        "backbone.layers.0.mixer.in_proj.weight", "backbone.layers.0.mixer.A_log", "backbone.layers.0.mixer.D",
        "backbone.layers.0.mixer.conv1d.bias", "backbone.layers.0.mixer.norm.weight",
        "backbone.layers.1.mixer.up_proj.weight", "backbone.layers.2.mixer.q_proj.weight",
        "backbone.layers.3.mixer.experts.7.down_proj.weight", "backbone.layers.3.mixer.gate.e_score_correction_bias",
        "backbone.layers.3.mixer.shared_experts.up_proj.weight",
    }  # fmt: skip
    assert not any("gate_proj" in name for name in names)


def test_nemotron_hs_layers_by_letters_or_by_words() -> None:
    by_letters = model_spec_from_hf(config(NEMOTRON))
    without: dict[str, Any] = {"hybrid_override_pattern": ..., "num_hidden_layers": ...}
    for words in (["mamba", "mlp", "attention", "moe"], ["linear_attention", "mlp", "full_attention", "moe"]):
        assert model_spec_from_hf(config(NEMOTRON, **without, layers_block_type=words)) == by_letters
    older: dict[str, Any] = {"head_dim": ..., "attention_head_dim": 16, "rms_norm_eps": 1e-5, "layer_norm_epsilon": ...}
    assert model_spec_from_hf(config(NEMOTRON, **older)) == by_letters


def test_the_state_of_mamba_2_is_fp32_unless_the_config_says_otherwise() -> None:
    for given, kept in ((..., "F32"), ("float16", "F16")):
        mixer = model_spec_from_hf(config(NEMOTRON, mamba_ssm_cache_dtype=given)).layers[0].mixer
        assert isinstance(mixer, Mamba2)
        assert mixer.state_dtype == kept


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hybrid_override_pattern": "M-*"}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": "M-*X"}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": 4}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": ..., "layers_block_type": [["mlp"]] * 4}, "layers_block_type"),
        ({"hybrid_override_pattern": "M" * 10_001, "num_hidden_layers": ...}, "num_hidden_layers"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"sliding_window": 32}, "sliding_window"),
        ({"head_dim": ...}, "head_dim"),
        ({"n_groups": 3}, "n_groups"),
        ({"ssm_state_size": ...}, "ssm_state_size"),
        ({"mamba_ssm_cache_dtype": "int8"}, "mamba_ssm_cache_dtype"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"moe_latent_size": 0}, "moe_latent_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_nemotron_hs_refusals_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field) as fault:
        model_spec_from_hf(config(NEMOTRON, **changes), "some/config.json")
    assert "some/config.json" in fault.value.what
    assert fault.value.mend


def test_jambas_layers_by_two_periods() -> None:
    spec = model_spec_from_hf(config(JAMBA))
    assert [layer.mixer.kind for layer in spec.layers] == ["mamba1", "mamba1", "attention", "mamba1"] * 2
    assert [layer.mlp.kind for layer in spec.layers] == ["gated-mlp", "moe"] * 4
    assert len(spec.kinds) == 3
    assert (spec.rotary_frac, spec.final_norm) == (0.0, "final_layernorm")
    with pytest.raises(ConfigError, match="plain dense"):
        spec.dense()


def test_jambas_checkpoint_has_names_of_its_own() -> None:
    names = {tensor.name for tensor in model_tensors(model_spec_from_hf(config(JAMBA)))}
    assert names >= {
        "model.embed_tokens.weight", "model.final_layernorm.weight", "model.layers.0.pre_ff_layernorm.weight",
        "model.layers.0.feed_forward.gate_proj.weight", "model.layers.0.mamba.x_proj.weight",
        "model.layers.0.mamba.dt_proj.bias", "model.layers.0.mamba.A_log", "model.layers.0.mamba.b_layernorm.weight",
        "model.layers.1.feed_forward.router.weight", "model.layers.1.feed_forward.experts.3.down_proj.weight",
        "model.layers.2.self_attn.q_proj.weight",
    }  # fmt: skip


def test_a_jamba_of_one_expert_has_none() -> None:
    spec = model_spec_from_hf(config(JAMBA, num_experts=1, num_experts_per_tok=1))
    assert {layer.mlp.kind for layer in spec.layers} == {"gated-mlp"}


def test_jambas_rank_is_a_sixteenth_of_the_hidden_size_where_it_is_left_to_be() -> None:
    for given, rank in ((8, 8), ("auto", 5), (..., 5)):
        mixer = model_spec_from_hf(config(JAMBA, mamba_dt_rank=given, hidden_size=72)).layers[0].mixer
        assert isinstance(mixer, Mamba1)
        assert (mixer.dt_rank, mixer.inner_size) == (rank, 144)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"attn_layer_period": 0}, "attn_layer_period"),
        ({"attn_layer_offset": 4}, "attn_layer_offset"),
        ({"expert_layer_offset": -1}, "expert_layer_offset"),
        ({"expert_layer_offset": 2}, "expert_layer_offset"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"mamba_dt_rank": "half"}, "mamba_dt_rank"),
        ({"mamba_d_state": ...}, "mamba_d_state"),
        ({"mamba_ssm_cache_dtype": "int8"}, "mamba_ssm_cache_dtype"),
        ({"mamba_conv_bias": 1}, "mamba_conv_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_jambas_refusals_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        model_spec_from_hf(config(JAMBA, **changes))


def test_bambas_layers_by_the_indices_of_those_with_a_cache() -> None:
    spec = model_spec_from_hf(config(BAMBA))
    assert [layer.mixer.kind for layer in spec.layers] == ["mamba2", "mamba2", "attention", "mamba2"]
    assert (spec.rotary_frac, spec.final_norm) == (0.5, "final_layernorm")
    names = {tensor.name for tensor in model_tensors(spec)}
    assert names >= {
        "model.layers.0.mamba.in_proj.weight", "model.layers.0.mamba.D", "model.layers.0.pre_ff_layernorm.weight",
        "model.layers.2.self_attn.o_proj.weight", "model.layers.2.feed_forward.up_proj.weight",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"attn_layer_indices": [4]}, "attn_layer_indices"),
        ({"attn_layer_indices": [-1]}, "attn_layer_indices"),
        ({"attn_layer_indices": "2"}, "attn_layer_indices"),
        ({"mamba_d_head": "auto"}, "mamba_d_head"),
        ({"mamba_n_groups": 3}, "mamba_n_groups"),
    ],
)
def test_bambas_refusals_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        model_spec_from_hf(config(BAMBA, **changes))
