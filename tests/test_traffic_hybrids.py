"""Bytes of a step of hybrids that keep a state, against numbers worked out by hand and published counts."""

from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import as_in_checkpoint, model_tensors
from harness.specs.model import ModelSpec
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import TensorMeta
from harness.traffic import decode_traffic, prefill_flop


def traffic_of(model: ModelSpec) -> DecodeTraffic:
    return decode_traffic(model, model_tensors(model), "config")


NEMOTRON_3_NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856, "mlp_hidden_act": "relu2", "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32", "n_routed_experts": 128, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "layer_norm_epsilon": 1e-5, "max_position_embeddings": 262_144, "vocab_size": 131_072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16."""


def test_nemotron_3_nano_30b_a3b() -> None:
    """23 layers with a state, 23 with experts, 6 with a cache: one part and one norm each."""
    model = model_spec_from_hf(NEMOTRON_3_NANO)
    traffic = traffic_of(model)
    # 64 heads x 64 = 4,096 wide; x, B and C are 4,096 + 2 x 8 x 128 = 6,144 channels
    mamba = (4096 + 6144 + 64) * 2688 + 6144 * 4 + 6144 + 3 * 64 + 4096 + 2688 * 4096
    attention = 2 * 4096 * 2688 + 2 * 256 * 2688
    expert, shared, router = 2 * 1856 * 2688, 2 * 3712 * 2688, 128 * 2688 + 128
    assert (mamba, attention, expert, shared) == (38_742_208, 23_396_352, 9_977_856, 19_955_712)
    rest = 23 * mamba + 6 * attention + 23 * (shared + router) + 53 * 2688 + 131_072 * 2688
    # The Hub counts 31,577,937,344 parameters, and each of 23 routers has 128 corrections besides
    assert traffic.resident_weight_bytes == 2 * (31_577_937_344 + 23 * 128)
    assert traffic.resident_weight_bytes == 2 * (rest + 23 * 128 * expert + 131_072 * 2688)
    assert traffic.weight_read_bytes == 2 * (rest + 23 * 6 * expert) == 6_455_509_632
    assert traffic.kv_bytes_per_context_token == 6 * 2 * 2 * 128 * 2 == 6_144
    assert traffic.state_read_bytes == 23 * (64 * 64 * 128 * 4 + 6144 * 3 * 2) == 49_082_368
    assert traffic.state_write_bytes == traffic.state_read_bytes


def test_mamba_2s_flop_do_not_grow_with_the_context() -> None:
    model = model_spec_from_hf(NEMOTRON_3_NANO)
    traffic = traffic_of(model)
    # a value of the state: one for the decay, two for (dt x) B, two for C; two a tap
    assert traffic.state_flop == 23 * (5 * 64 * 64 * 128 + 2 * 6144 * 4)
    assert traffic.step_flop(2000) - traffic.step_flop(1000) == 1000 * 6 * 4 * 32 * 128
    assert prefill_flop(model, 1) == traffic.step_flop(1)


def test_experts_on_a_latent_input_are_narrower_and_its_projections_are_read() -> None:
    small = {**NEMOTRON_3_NANO, "num_hidden_layers": 1, "hybrid_override_pattern": "E"}
    wide, narrow = (model_spec_from_hf({**small, "moe_latent_size": size}) for size in (None, 1024))
    bytes_wide, bytes_narrow = (traffic_of(m).weight_read_bytes for m in (wide, narrow))
    assert bytes_wide - bytes_narrow == 2 * (6 * 2 * 1856 * (2688 - 1024) - 2 * 2688 * 1024)
    assert prefill_flop(narrow, 1) == traffic_of(narrow).step_flop(1)


def test_nemotrons_draft_head_is_not_read() -> None:
    model = model_spec_from_hf(NEMOTRON_3_NANO)
    draft = TensorMeta(name="mtp.layers.0.mixer.q_proj.weight", dtype="BF16", shape=(4096, 2688))
    plain = traffic_of(model).weight_read_bytes
    assert decode_traffic(model, [*model_tensors(model), draft], "headers").weight_read_bytes == plain


JAMBA_V0_1 = {
    "model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4,
    "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256, "mamba_conv_bias": True,
    "mamba_proj_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 262_144,
    "vocab_size": 65_536, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""ai21labs/Jamba-v0.1."""


def test_jamba_v0_1_to_the_byte() -> None:
    """4 of 32 layers have a cache, 16 have experts."""
    model = model_spec_from_hf(JAMBA_V0_1)
    traffic = traffic_of(model)
    mamba = (
        16_384 * 4096 + (256 + 2 * 16) * 8192 + 8192 * 256 + 8192 + 4096 * 8192  # in, x, dt with its bias, out
        + 8192 * 4 + 8192 + 8192 * 16 + 8192 + 256 + 2 * 16  # convolution, A, D, three norms
    )  # fmt: skip
    attention = 2 * 4096 * 4096 + 2 * 1024 * 4096
    mlp, router = 3 * 14_336 * 4096, 16 * 4096
    rest = 28 * mamba + 4 * attention + 16 * (mlp + router) + 65 * 4096 + 65_536 * 4096
    assert rest + 16 * 16 * mlp + 65_536 * 4096 == 51_570_323_328, "as published"
    assert traffic.resident_weight_bytes == 2 * 51_570_323_328
    assert traffic.weight_read_bytes == 2 * (rest + 16 * 2 * mlp)
    assert traffic.kv_bytes_per_context_token == 4 * 2 * 8 * 128 * 2 == 16_384
    assert traffic.state_read_bytes == traffic.state_write_bytes == 28 * (8192 * 16 * 4 + 8192 * 3 * 2) == 16_056_320
    # a value of the state: one each for dt A and the decay, two each for (dt x) B and h C; two a tap
    assert traffic.state_flop == 28 * (6 * 8192 * 16 + 2 * 8192 * 4)
    assert prefill_flop(model, 1) == traffic.step_flop(1)


QWEN3_5_35B_A3B = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40, "full_attention_interval": 4,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}, "vocab_size": 248_320,
    "max_position_embeddings": 262_144, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip


def test_qwen3_5_35b_a3b_reads_eight_of_256_stacked_experts() -> None:
    model = model_spec_from_hf({"text_config": QWEN3_5_35B_A3B, "vision_config": {"depth": 27}})
    traffic = traffic_of(model)
    delta = (8192 + 4096 + 2 * 32 + 4096) * 2048 + 8192 * 4 + 2 * 32 + 128  # qkv, z, b and a, out; conv; norm
    attention = (2 * 4096 + 2 * 512 + 4096) * 2048 + 2 * 256  # queries with their gates
    expert = 3 * 512 * 2048
    every = expert + 2048 + 256 * 2048 + 2 * 2048  # the shared expert and its gate, the router, norms
    rest = 30 * delta + 10 * attention + 40 * every + 2048 + 248_320 * 2048
    text = rest + 40 * 256 * expert + 248_320 * 2048
    assert traffic.resident_weight_bytes == 2 * text
    # The Hub counts 35,951,822,704 with the vision tower and a draft layer of full attention, with its experts, a
    # product from two hidden states to one, and three norms
    assert text + 446_571_248 + attention + every + 256 * expert + 2 * 2048 * 2048 + 3 * 2048 == 35_951_822_704
    assert traffic.weight_read_bytes == 2 * (rest + 40 * 8 * expert)
    assert traffic.kv_bytes_per_context_token == 10 * 2 * 2 * 256 * 2 == 20_480
    assert traffic.state_read_bytes == 30 * (4 * 32 * 128 * 128 + 2 * 8192 * 3)


def test_experts_in_stacks_are_the_same_bytes_as_apart() -> None:
    stacked = model_spec_from_hf({**QWEN3_5_35B_A3B, "num_hidden_layers": 4})
    names = {"model.layers.0.mlp.experts.0.up_proj.weight", "mtp.layers.0.mlp.experts.gate_up_proj"}
    apart = as_in_checkpoint(stacked, names)
    assert "model.layers.0.mlp.experts.gate_up_proj" in {tensor.name for tensor in model_tensors(stacked)}
    assert "model.layers.0.mlp.experts.255.up_proj.weight" in {tensor.name for tensor in model_tensors(apart)}
    assert traffic_of(stacked) == traffic_of(apart)
    assert as_in_checkpoint(apart, {"model.layers.0.mlp.experts.gate_up_proj"}) == stacked
