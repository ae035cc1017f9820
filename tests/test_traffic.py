"""Bytes of a step against numbers worked out by hand, and properties that must hold for every model."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import CheckpointError
from harness.models import resolve_model
from harness.roofline import memory_floor_s
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import model_tensors
from harness.specs.model import ModelSpec
from harness.specs.tensor import TensorMeta
from harness.traffic import decode_traffic, prefill_flop


def spec(layers: int = 2, mixer: dict[str, object] | None = None, mlp: object = None, **changes: object) -> ModelSpec:
    """A small Qwen3 of one kind of layer."""
    attention = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "qk_norm": True}
    kind = {"mixer": attention | (mixer or {}), "mlp": mlp or gated(96)}
    small = {
        "model_type": "qwen3", "hidden_size": 64, "kinds": [kind],
        "pattern": [0] * layers, "vocab_size": 100, "max_position_embeddings": 128, "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "dtype": "BF16",
    }  # fmt: skip
    return ModelSpec.model_validate(small | changes)


def gated(intermediate_size: int) -> dict[str, object]:
    return {"kind": "gated-mlp", "intermediate_size": intermediate_size}


def traffic_of(name: str):
    model = resolve_model(name)
    return decode_traffic(model.spec, model_tensors(model.spec), "config")


def test_llama2_7b_cache_is_2_gib_at_4096_tokens() -> None:
    # 2 (k, v) x 32 layers x 32 heads x 128 x 2 B = 524,288 B a position; x 4096 = 2 GiB
    assert traffic_of("llama-2-7b").kv_bytes_per_context_token == 524_288
    assert traffic_of("llama-2-7b").kv_bytes_per_context_token * 4096 == 2 * 2**30


@pytest.mark.parametrize(
    ("name", "roof", "floor_ms"),
    [
        # Parameters x 2 B less the input embedding, which is not read:
        # 13,015,864,320 - 32,000 x 5,120 = 12,852,024,320 -> 25,704,048,640 B
        ("llama-2-13b", 2.0e12, 12.852024320),
        ("llama-2-13b", 3.35e12, 25_704_048_640 / 3.35e9),
        # 68,976,648,192 - 32,000 x 8,192 = 68,714,504,192 -> 137,429,008,384 B: 41.0 ms, not 140 GB / 3.35 = 42
        ("llama-2-70b", 2.0e12, 68.714504192),
        ("llama-2-70b", 3.35e12, 41.0236),
        # 70,553,706,496 - 128,256 x 8,192 = 69,503,033,344 -> 139,006,066,688 B
        ("llama-3-70b", 3.35e12, 41.4944),
    ],
)
def test_floors_by_exact_bytes_read(name: str, roof: float, floor_ms: float) -> None:
    weights = traffic_of(name).weight_read_bytes
    assert memory_floor_s(weights, roof) * 1e3 == pytest.approx(floor_ms, abs=5e-4)


def test_qwen3_0_6b_by_hand() -> None:
    # One layer: qkv (2048 + 2 x 1024) x 1024, o 1024 x 2048, gate_up 2 x 3072 x 1024, down 1024 x 3072,
    # norms 2 x 1024 + 2 x 128 = 15,730,944 parameters; 28 of them, the final norm 1024, the tied head 151,936 x 1024.
    layer = (2048 + 2 * 1024) * 1024 + 1024 * 2048 + 2 * 3072 * 1024 + 1024 * 3072 + 2 * 1024 + 2 * 128
    assert layer == 15_730_944
    traffic = traffic_of("qwen3-0.6b")
    assert traffic.weight_read_bytes == 2 * (28 * layer + 1024 + 151_936 * 1024) == 1_192_099_840
    assert traffic.embedding_row_bytes == 2048
    assert traffic.kv_bytes_per_context_token == 2 * 28 * 8 * 128 * 2 == 114_688
    # a step at context c: weights, one embedding row, c positions read and one written
    assert traffic.step_bytes(100) == 1_192_099_840 + 2048 + 101 * 114_688


def test_one_multiply_add_is_two_flop() -> None:
    traffic = traffic_of("qwen3-0.6b")
    products = 28 * ((2048 + 2 * 1024) * 1024 + 1024 * 2048 + 3 * 3072 * 1024) + 151_936 * 1024
    assert traffic.linear_flop == 2 * products
    assert traffic.step_flop(10) - traffic.step_flop(9) == 4 * 28 * 2048


def test_prefill_flop_of_one_token_is_a_step_with_context_one() -> None:
    model = resolve_model("qwen3-0.6b").spec
    assert prefill_flop(model, 1) == traffic_of("qwen3-0.6b").step_flop(1)


def test_a_tied_head_is_read_though_the_checkpoint_has_no_tensor_for_it() -> None:
    tied, untied = spec(), spec(tie_word_embeddings=False)
    assert "lm_head.weight" not in {tensor.name for tensor in model_tensors(tied)}
    bytes_tied = decode_traffic(tied, model_tensors(tied), "config").weight_read_bytes
    assert bytes_tied == decode_traffic(untied, model_tensors(untied), "config").weight_read_bytes


def test_an_untied_head_that_is_absent_is_read_all_the_same() -> None:
    untied = spec(tie_word_embeddings=False)
    without = [tensor for tensor in model_tensors(untied) if tensor.name != "lm_head.weight"]
    whole = decode_traffic(untied, model_tensors(untied), "headers").weight_read_bytes
    assert decode_traffic(untied, without, "headers").weight_read_bytes == whole


def test_a_tied_head_that_the_checkpoint_repeats_is_read_once() -> None:
    tied = spec()
    twice = [*model_tensors(tied), TensorMeta(name="lm_head.weight", dtype="BF16", shape=(100, 64))]
    once = decode_traffic(tied, model_tensors(tied), "headers")
    assert decode_traffic(tied, twice, "headers").weight_read_bytes == once.weight_read_bytes


def test_packed_types_count_as_they_lie_in_the_file() -> None:
    tensors = model_tensors(spec())
    packed = [
        tensor.model_copy(update={"dtype": "I32", "shape": (tensor.shape[0] // 8, tensor.shape[1])})
        if tensor.name.endswith("down_proj.weight") else tensor
        for tensor in tensors
    ]  # fmt: skip
    less = decode_traffic(spec(), tensors, "headers").weight_read_bytes - 2 * 64 * 96 * 2 + 2 * (64 // 8) * 96 * 4
    assert decode_traffic(spec(), packed, "headers").weight_read_bytes == less


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.7.mlp.up_proj.weight",
        "visual.patch_embed.weight",
        "model.norm.bias",
        "mtp.fc.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.mlp.experts.0.up_proj.weight",
    ],
)
def test_a_tensor_of_no_known_part_is_refused_by_name(name: str) -> None:
    tensors = [*model_tensors(spec()), TensorMeta(name=name, dtype="BF16", shape=(2, 2))]
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        decode_traffic(spec(), tensors, "headers")


def test_a_missing_embedding_is_refused() -> None:
    tensors: Sequence[TensorMeta] = [t for t in model_tensors(spec()) if "embed" not in t.name]
    with pytest.raises(CheckpointError, match="embed_tokens"):
        decode_traffic(spec(), tensors, "headers")


def test_rotary_buffers_of_old_checkpoints_are_not_read() -> None:
    buffer = TensorMeta(name="model.layers.0.self_attn.rotary_emb.inv_freq", dtype="F32", shape=(16,))
    plain = decode_traffic(spec(), model_tensors(spec()), "headers").weight_read_bytes
    assert decode_traffic(spec(), [*model_tensors(spec()), buffer], "headers").weight_read_bytes == plain


dims = st.integers(1, 8)


@given(
    layers=dims, kv_heads=dims, group=dims, head_dim=st.sampled_from([16, 64, 128]), hidden=st.integers(1, 64),
    inter=st.integers(1, 64), vocab=st.integers(2, 500), tied=st.booleans(), bias=st.booleans(),
    context=st.integers(1, 9999),
)  # fmt: skip
def test_properties(layers, kv_heads, group, head_dim, hidden, inter, vocab, tied, bias, context) -> None:
    heads = {"num_kv_heads": kv_heads, "num_heads": kv_heads * group, "head_dim": head_dim, "qkv_bias": bias}
    model = spec(layers, heads, gated(inter), hidden_size=hidden, vocab_size=vocab, tie_word_embeddings=tied)
    tensors = model_tensors(model)
    traffic = decode_traffic(model, tensors, "config")
    embedding = 2 * vocab * hidden
    # everything resident is read, but the input embedding when it is not the head
    assert traffic.weight_read_bytes == traffic.resident_weight_bytes - (0 if tied else embedding)
    assert traffic.embedding_row_bytes == 2 * hidden
    # the cache does not depend on how many query heads share a key head
    assert traffic.kv_bytes_per_context_token == 2 * layers * kv_heads * head_dim * 2
    assert traffic.step_bytes(context + 1) - traffic.step_bytes(context) == traffic.kv_bytes_per_context_token
    # bf16 decode does about one FLOP a byte of weight: 2 FLOP a 2-byte weight, norms and biases less
    assert traffic.linear_flop <= traffic.weight_read_bytes
    assert prefill_flop(model, context) >= context * 2 * layers * 3 * hidden * inter


def test_mixtral_reads_two_of_eight_experts() -> None:
    """Billed with all experts it stood at 224 % of its memory's peak."""
    # One layer: q and o 4096 x 4096, k and v 1024 x 4096, router 8 x 4096, norms 2 x 4096; an expert 3 x 14336 x 4096.
    expert = 3 * 14_336 * 4096
    rest = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 8 * 4096 + 2 * 4096
    outside = 4096 + 32_000 * 4096  # final norm, head
    traffic = traffic_of("mixtral-8x7b")
    assert traffic.weight_read_bytes == 2 * (32 * (rest + 2 * expert) + outside) == 25_497_706_496
    assert traffic.resident_weight_bytes == 2 * (32 * (rest + 8 * expert) + outside + 32_000 * 4096) == 93_405_585_408
    assert traffic.kv_bytes_per_context_token == 2 * 32 * 1024 * 2 == 131_072
    assert traffic.linear_flop == 2 * (32 * (rest - 2 * 4096 + 2 * expert) + 32_000 * 4096)


def test_qwen3_30b_a3b_reads_eight_of_128_experts() -> None:
    # One layer: q and o 4096 x 2048, k and v 512 x 2048, router 128 x 2048, norms 2 x 2048 + 2 x 128;
    # an expert 3 x 768 x 2048
    expert = 3 * 768 * 2048
    rest = 2 * 4096 * 2048 + 2 * 512 * 2048 + 128 * 2048 + 2 * 2048 + 2 * 128
    traffic = traffic_of("qwen3-30b-a3b")
    outside = 2048 + 151_936 * 2048
    assert traffic.weight_read_bytes == 2 * (48 * (rest + 8 * expert) + outside) == 6_083_735_552
    # 30.5 billion parameters as published, 3.3 billion of them active, the embedding counted in both
    parameters = 48 * (rest + 128 * expert) + outside + 151_936 * 2048
    assert traffic.resident_weight_bytes == 2 * parameters
    assert parameters == 30_532_122_624


def test_a_shared_expert_and_its_gate_are_read_by_every_token() -> None:
    moe = {"kind": "moe", "num_experts": 6, "experts_per_token": 3, "expert": gated(16)}
    shared = {**moe, "shared": gated(40), "shared_gate": True}
    without, with_shared = (decode_traffic(s, model_tensors(s), "config") for s in (spec(mlp=moe), spec(mlp=shared)))
    more = 2 * 2 * (3 * 40 * 64 + 64)  # two layers of bf16: gate, up, down of width 40, and the row that scales them
    assert with_shared.weight_read_bytes - without.weight_read_bytes == more
    assert with_shared.resident_weight_bytes - without.resident_weight_bytes == more
    assert with_shared.linear_flop - without.linear_flop == more
    assert without.resident_weight_bytes - without.weight_read_bytes == 2 * 2 * 3 * (3 * 16 * 64)  # 3 of 6 not read


def test_experts_of_half_the_size_are_half_the_bytes() -> None:
    """Headers decide: fp8 experts beside bf16 attention."""
    moe = spec(mlp={"kind": "moe", "num_experts": 4, "experts_per_token": 1, "expert": gated(16)})
    tensors = model_tensors(moe)
    halved = [t.model_copy(update={"dtype": "F8_E4M3"}) if ".experts." in t.name else t for t in tensors]
    saved = (
        decode_traffic(moe, tensors, "headers").weight_read_bytes
        - decode_traffic(moe, halved, "headers").weight_read_bytes
    )
    assert saved == 2 * 3 * 16 * 64


def sliding() -> ModelSpec:
    """Two layers that look back 10 positions, then one that looks back all."""
    heads = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    kinds = [{"mixer": {**heads, "window": 10}, "mlp": gated(96)}, {"mixer": heads, "mlp": gated(96)}]
    return spec(kinds=kinds, pattern=[0, 0, 1])


def test_a_window_stops_the_cache_from_growing() -> None:
    traffic = decode_traffic(sliding(), model_tensors(sliding()), "config")
    position = 2 * 2 * 32 * 2  # keys and values of two heads in bf16, one layer
    assert traffic.kv_bytes_per_context_token == 3 * position, "what the first position costs: no layer is dropped"
    assert [traffic.cache_bytes(context) // position for context in (1, 10, 11, 100)] == [3, 30, 31, 2 * 10 + 100]
    assert traffic.step_bytes(100) - traffic.step_bytes(99) == position
    # FLOP: 4 x 128 a pair and layer
    assert traffic.step_flop(100) - traffic.linear_flop == 4 * 128 * (10 + 10 + 100)


def test_a_prompt_longer_than_the_window_sees_fewer_pairs() -> None:
    model = sliding()
    linears = 25 * 2 * sum(p.n * p.k for layer in model.layers for p in layer.products(64)) + 2 * 100 * 64
    pairs_in_window = sum(min(i, 10) for i in range(1, 26))
    pairs_in_all = 25 * 26 // 2
    assert prefill_flop(model, 25) == linears + 4 * 128 * (2 * pairs_in_window + pairs_in_all)


def test_mistral_7b_keeps_4096_positions() -> None:
    # 2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B a position; past 4,096 the cache stays at 512 MiB
    traffic = traffic_of("mistral-7b-v0.1")
    assert traffic.kv_bytes_per_context_token == 131_072
    assert traffic.cache_bytes(4096) == traffic.cache_bytes(32_000) == 512 * 2**20
    assert traffic.resident_weight_bytes == 2 * 7_241_732_096


def test_qwen3_5_27b_to_the_byte() -> None:
    """48 of 64 layers keep a state of fixed size; only the other 16 have a cache."""
    delta = (10_240 + 6_144 + 2 * 48 + 6_144) * 5120 + 10_240 * 4 + 2 * 48 + 128  # qkv, z, b and a, out; conv; norm
    attention = (2 * 6_144 + 2 * 1_024 + 6_144) * 5120 + 2 * 256  # queries with their gates
    every = 3 * 17_408 * 5120 + 2 * 5120
    body = 48 * (delta + every) + 16 * (attention + every) + 5120
    traffic = traffic_of("qwen3.5-27b")
    assert 2 * body == 48_706_403_328
    assert traffic.weight_read_bytes == 2 * body + 2 * 248_320 * 5120 == 51_249_200_128
    assert traffic.kv_bytes_per_context_token == 16 * 2 * 4 * 256 * 2 == 65_536, "not 262,144: 48 layers keep no cache"
    recurrent, convolution = 48 * 48 * 128 * 128, 48 * 10_240 * 3
    assert (recurrent, convolution) == (37_748_736, 1_474_560)
    assert 4 * recurrent == 150_994_944
    assert traffic.state_read_bytes == traffic.state_write_bytes == 150_994_944 + 2 * 1_474_560
    assert traffic.step_bytes(1000) == 51_249_200_128 + 10_240 + 1001 * 65_536 + 2 * 153_944_064


def test_the_delta_rules_flop_do_not_grow_with_the_context() -> None:
    traffic = traffic_of("qwen3.5-27b")
    assert traffic.state_flop == 48 * (7 * 48 * 128 * 128 + 2 * 10_240 * 4)
    assert traffic.step_flop(2000) - traffic.step_flop(1000) == 1000 * 16 * 4 * 24 * 256
    model = resolve_model("qwen3.5-27b").spec
    assert prefill_flop(model, 1) == traffic.step_flop(1)


def test_qwen3_next_is_a_hybrid_with_experts() -> None:
    # Published: 80 billion parameters, 3 billion of them active
    traffic = traffic_of("qwen3-next-80b-a3b")
    assert traffic.resident_weight_bytes == 2 * 79_674_391_296
    assert traffic.kv_bytes_per_context_token == 12 * 2 * 2 * 256 * 2 == 24_576
    assert traffic.state_read_bytes == 36 * (4 * 32 * 128 * 128 + 2 * 8_192 * 3)


def test_vision_towers_and_draft_heads_are_resident_and_not_read() -> None:
    model = resolve_model("qwen3.5-27b").spec.model_copy(update={"not_read": ("model.visual.", "visual.", "mtp.")})
    more = [
        TensorMeta(name="model.visual.blocks.0.attn.qkv.weight", dtype="BF16", shape=(3456, 1152)),
        TensorMeta(name="mtp.fc.weight", dtype="BF16", shape=(5120, 10_240)),
    ]
    plain = decode_traffic(model, model_tensors(model), "headers")
    whole = decode_traffic(model, [*model_tensors(model), *more], "headers")
    assert whole.weight_read_bytes == plain.weight_read_bytes
    assert whole.resident_weight_bytes - plain.resident_weight_bytes == 2 * (3456 * 1152 + 5120 * 10_240)


def test_deepseek_v3_keeps_70_272_bytes_a_position() -> None:
    """61 layers x (512 of the latent vector + 64 that turn) x 2 B; as 128 full heads it would be 57 times as much."""
    traffic = traffic_of("deepseek-v3")
    assert traffic.kv_bytes_per_context_token == 61 * 576 * 2 == 70_272
    attention = 1536 * 7168 + 24_576 * 1536 + 576 * 7168 + 32_768 * 512 + 7168 * 16_384 + 1536 + 512
    expert = 3 * 2048 * 7168
    sparse = 61 - 3
    read = 61 * (attention + 2 * 7168) + 3 * 3 * 18_432 * 7168 + sparse * (9 * expert + 256 * 7168 + 256)
    assert traffic.weight_read_bytes == 2 * (read + 7168 + 129_280 * 7168)
    # 671 billion parameters as published (671,026,404,352 and the router's corrections), 37 billion active
    assert traffic.resident_weight_bytes == 2 * (671_026_404_352 + 58 * 256)
    assert (traffic.weight_read_bytes // 2 + 129_280 * 7168) / 1e9 == pytest.approx(37.55, abs=0.05)
    # on the latent vector: 128 heads x (576 + 512) multiply-adds a pair and layer
    assert traffic.attention_flop_per_context_token == 61 * 2 * 128 * (576 + 512)


def test_deepseek_v2_lite_projects_queries_directly() -> None:
    traffic = traffic_of("deepseek-v2-lite")
    assert traffic.kv_bytes_per_context_token == 27 * 576 * 2 == 31_104
    assert traffic.resident_weight_bytes == 2 * 15_706_484_224, "15.7 billion as published"
    pairs = 100 * 101 // 2
    model = resolve_model("deepseek-v2-lite").spec
    rest = 100 * (traffic.linear_flop - 2 * 102_400 * 2048) + 2 * 102_400 * 2048
    assert prefill_flop(model, 100) == rest + 27 * 2 * 16 * (128 + 64 + 128) * pairs


def test_a_draft_layer_behind_the_last_is_not_read() -> None:
    model = resolve_model("deepseek-v3").spec
    draft = TensorMeta(name="model.layers.61.eh_proj.weight", dtype="BF16", shape=(7168, 14_336))
    plain = traffic_of("deepseek-v3")
    assert decode_traffic(model, [*model_tensors(model), draft], "headers").weight_read_bytes == plain.weight_read_bytes


def packed(spec_: ModelSpec, parts: dict[str, tuple[str, tuple[int, ...]]]) -> list[TensorMeta]:
    """The checkpoint of a model whose first layer's down_proj [64, 96] is kept in parts."""
    at = "model.layers.0.mlp.down_proj."
    kept = [tensor for tensor in model_tensors(spec_) if tensor.name != at + "weight"]
    return kept + [TensorMeta(name=at + name, dtype=dtype, shape=shape) for name, (dtype, shape) in parts.items()]


@pytest.mark.parametrize(
    ("method", "parts", "num_bytes"),
    [
        # 96 inputs, 64 outputs; eight 4-bit values an int32; groups of 32 inputs with a scale and a zero point each
        (
            "gptq",
            {
                "qweight": ("I32", (12, 64)),
                "qzeros": ("I32", (3, 8)),
                "scales": ("F16", (3, 64)),
                "g_idx": ("I32", (96,)),
            },
            12 * 64 * 4 + 3 * 8 * 4 + 3 * 64 * 2 + 96 * 4,
        ),
        (
            "awq",
            {"qweight": ("I32", (96, 8)), "qzeros": ("I32", (3, 8)), "scales": ("F16", (3, 64))},
            96 * 8 * 4 + 3 * 8 * 4 + 3 * 64 * 2,
        ),
        ("fp8", {"weight": ("F8_E4M3", (64, 96)), "weight_scale_inv": ("F32", (1, 1))}, 64 * 96 + 4),
        # nvfp4: two values a byte, an fp8 scale for each 16 of them, one more for all
        (
            "modelopt",
            {
                "weight": ("U8", (64, 48)),
                "weight_scale": ("F8_E4M3", (64, 6)),
                "weight_scale_2": ("F32", ()),
                "input_scale": ("F32", ()),
            },
            64 * 48 + 64 * 6 + 2 * 4,
        ),
        (
            "compressed-tensors",
            {"weight_packed": ("I32", (64, 12)), "weight_scale": ("BF16", (64, 3)), "weight_shape": ("I64", (2,))},
            64 * 12 * 4 + 64 * 3 * 2 + 2 * 8,
        ),
    ],
)
def test_packed_and_scaled_weights_count_as_they_lie_in_the_file(method: str, parts: dict, num_bytes: int) -> None:
    plain = spec()
    quantized = spec(quantization=method)
    whole = decode_traffic(plain, model_tensors(plain), "headers").weight_read_bytes
    found = decode_traffic(quantized, packed(quantized, parts), "headers")
    assert found.weight_read_bytes == whole - 2 * 64 * 96 + num_bytes
    with pytest.raises(CheckpointError, match="down_proj"):
        decode_traffic(plain, packed(plain, {**parts, "scales": ("F16", (3, 64))}), "headers")


def test_packed_experts_are_read_in_part() -> None:
    moe = spec(mlp={"kind": "moe", "num_experts": 4, "experts_per_token": 1, "expert": gated(16)}, quantization="fp8")
    scale = [
        TensorMeta(name=f"model.layers.0.mlp.experts.{i}.up_proj.weight_scale_inv", dtype="F32", shape=(1, 10))
        for i in range(4)
    ]
    plain = decode_traffic(moe, model_tensors(moe), "headers").weight_read_bytes
    assert decode_traffic(moe, [*model_tensors(moe), *scale], "headers").weight_read_bytes == plain + 40


GPT_OSS_120B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
    "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201_088, "max_position_embeddings": 131_072,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 150_000, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16",
}  # fmt: skip


def mxfp4(tensors: list[TensorMeta]) -> list[TensorMeta]:
    """Stacks of experts [experts, inputs, outputs] as checkpoints have them: [experts, outputs, inputs / 32, 16]."""
    kept = []
    for tensor in tensors:
        if not tensor.name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            kept.append(tensor)
            continue
        experts, inputs, outputs = tensor.shape
        blocks = (experts, outputs, inputs // 32)
        kept.append(TensorMeta(name=f"{tensor.name}_blocks", dtype="U8", shape=(*blocks, 16)))
        kept.append(TensorMeta(name=f"{tensor.name}_scales", dtype="U8", shape=blocks))
    return kept


def test_gpt_oss_120b_in_mxfp4() -> None:
    model = model_spec_from_hf(GPT_OSS_120B)
    traffic = decode_traffic(model, mxfp4(model_tensors(model)), "headers")
    # 36 layers x 2 x 8 heads x 64 x 2 B; every other layer looks back 128 positions
    assert traffic.kv_bytes_per_context_token == 73_728
    assert [traffic.cache_bytes(context) for context in (1, 128, 129)] == [73_728, 128 * 73_728, 128 * 73_728 + 36_864]
    expert = 2880 * 3 * 2880 * 17 // 32 + 3 * 2880 * 2  # a value is half a byte and a 32nd of a scale; biases in bf16
    heads = 4096 + 2 * 512
    rest = 2 * (2880 * heads + heads + 4096 * 2880 + 2880 + 64 + 128 * 2880 + 128 + 2 * 2880)
    outside = 2 * (2880 + 201_088 * 2880)
    assert traffic.weight_read_bytes == 36 * (rest + 4 * expert) + outside
    assert traffic.resident_weight_bytes == 36 * (rest + 128 * expert) + outside + 2 * 201_088 * 2880


def test_an_unknown_part_of_an_expert_is_refused() -> None:
    model = model_spec_from_hf(GPT_OSS_120B)
    odd = TensorMeta(name="model.layers.0.mlp.experts.up_proj_blocks", dtype="U8", shape=(1, 16))
    with pytest.raises(CheckpointError, match="up_proj_blocks"):
        decode_traffic(model, [*model_tensors(model), odd], "headers")


@pytest.mark.parametrize(
    "kind", [{"kind": "moe", "expert": gated(16)}, {"kind": "stacked-moe", "intermediate_size": 16}]
)
def test_no_token_goes_through_more_experts_than_there_are(kind: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="9 experts a token of 8"):
        spec(mlp={**kind, "num_experts": 8, "experts_per_token": 9})
