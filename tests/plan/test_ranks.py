"""What one of several devices has of a model, by hand and against the layout of the smaller model that it is."""

from math import ceil

import pytest

from harness.errors import ConfigError
from harness.models import ResolvedModel, model_names, resolve_model
from harness.plan.ranks import can_share, check_divides, collectives_floor_s, rank_spec, rank_tensors, vocab_shares
from harness.plan.variants import Variants
from harness.specs.layout import model_tensors
from harness.specs.plan import Scenario
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import TensorMeta
from harness.traffic import prefill_flop


def rank_traffic(name: str, num_ranks: int, **scenario: int) -> DecodeTraffic:
    return Variants(resolve_model(name)).rank(Scenario(tensor_parallel=num_ranks, **scenario)).traffic


def test_one_of_16_ranks_of_qwen3_0_6b_by_hand() -> None:
    """16 query heads, one each; 8 key heads, each kept twice; MLP 3072 / 16; vocabulary 151,936 / 16."""
    layer = 128 * 1024 + 2 * 128 * 1024 + 1024 * 128 + 3 * 192 * 1024 + 2 * 1024 + 2 * 128
    traffic = rank_traffic("qwen3-0.6b", 16)
    assert traffic.weight_read_bytes == 2 * (28 * layer + 1024 + 9496 * 1024)
    assert traffic.embedding_row_bytes == 2048
    assert traffic.kv_bytes_per_context_token == 114_688 // 8, "not a sixteenth"
    assert traffic.attention_flop_per_context_token == 4 * 28 * 2048 // 16
    assert traffic.linear_flop == 2 * (28 * (layer - 2 * 1024 - 2 * 128) + 9496 * 1024)


def test_eight_experts_are_cut_and_routers_are_kept() -> None:
    """Every rank has a part of every expert, a whole router [8, 4096] and whole norms."""
    whole, part = (rank_traffic("mixtral-8x7b", ranks) for ranks in (1, 4))
    kept = 2 * (32 * (8 * 4096 + 2 * 4096) + 4096)
    assert part.weight_read_bytes == (whole.weight_read_bytes - kept) // 4 + kept
    assert part.routed_experts[0].num_bytes == whole.routed_experts[0].num_bytes // 4
    assert part.routed_experts[0].num_distinct(8) == whole.routed_experts[0].num_distinct(8)
    assert part.kv_bytes_per_context_token == whole.kv_bytes_per_context_token // 4


def test_a_latent_cache_is_on_every_rank() -> None:
    whole, part = (rank_traffic("deepseek-v3", ranks) for ranks in (1, 8))
    assert part.kv_bytes_per_context_token == whole.kv_bytes_per_context_token == 70_272
    assert part.attention_flop_per_context_token == whole.attention_flop_per_context_token // 8
    latent = 1536 * 7168 + 576 * 7168 + 1536 + 512 + 2 * 7168  # projections to the latents, their norms, the layer's
    kept = 2 * (61 * latent + 58 * (256 * 7168 + 256) + 7168)
    assert part.weight_read_bytes == (whole.weight_read_bytes - kept) // 8 + kept


def test_states_are_shared_out_by_heads() -> None:
    whole, part = (rank_traffic("qwen3.5-27b", ranks) for ranks in (1, 8))
    assert part.state_read_bytes == whole.state_read_bytes // 8
    assert part.state_flop == whole.state_flop // 8
    assert part.kv_bytes_per_context_token == whole.kv_bytes_per_context_token // 4, "four key heads, each kept twice"


@pytest.mark.parametrize("name", model_names())
def test_a_rank_has_the_tensors_of_a_smaller_model(name: str) -> None:
    model = resolve_model(name)
    num_ranks = next(ranks for ranks in (8, 4, 2, 3, 7) if can_share(model.spec, ranks))
    part = rank_tensors(model.spec, num_ranks, model_tensors(model.spec))
    expected = {tensor.name: tensor.num_bytes for tensor in model_tensors(rank_spec(model.spec, num_ranks))}
    assert {tensor.name: tensor.num_bytes for tensor in part} == expected
    assert num_ranks * sum(expected.values()) >= sum(tensor.num_bytes for tensor in model_tensors(model.spec))


def test_packed_and_scaled_parts_go_with_their_weight() -> None:
    spec = resolve_model("qwen3-0.6b").spec
    at = "model.layers.0."
    parts = [
        (at + "mlp.down_proj.qweight", (3072 // 8, 1024), 3072 // 8 * 1024 // 2),
        (at + "mlp.down_proj.scales", (3072 // 128, 1024), 3072 // 128 * 1024 // 2),
        (at + "self_attn.q_proj.input_scale", (1,), 1),
        (at + "input_layernorm.weight", (1024,), 1024),
        ("model.visual.patch.weight", (64, 64), 64 * 64),
    ]
    tensors = [TensorMeta(name=name, dtype="I32", shape=shape) for name, shape, _ in parts]
    assert [tensor.num_elements for tensor in rank_tensors(spec, 2, tensors)] == [values for _, _, values in parts]


def test_the_fullest_rank_has_what_does_not_divide() -> None:
    """Neither 151,936 tokens nor a width of 4864 divide by 14."""
    spec = resolve_model("qwen2.5-0.5b").spec
    rank = rank_spec(spec, 14)
    assert rank.vocab_size == ceil(151_936 / 14)
    assert rank.kinds[0].mlp.intermediate_size == ceil(4864 / 14) == 348


@pytest.mark.parametrize(
    ("vocab_size", "num_ranks", "shares"),
    [(128, 2, (64, 64)), (131, 1, (131,)), (131, 2, (96, 35)), (131, 4, (48, 48, 35, 0)), (151_936, 2, (75_968,) * 2)],
)
def test_a_vocabulary_is_filled_up_before_it_is_cut(vocab_size: int, num_ranks: int, shares: tuple[int, ...]) -> None:
    """To a multiple of 64; nobody multiplies what fills it up."""
    assert vocab_shares(vocab_size, num_ranks) == shares
    spec = resolve_model("qwen3-0.6b").spec.model_copy(update={"vocab_size": vocab_size})
    assert rank_spec(spec, num_ranks).vocab_size == shares[0]


@pytest.mark.parametrize(
    ("name", "num_ranks", "width"),
    [("qwen2.5-0.5b", 14, 4864), ("qwen3-0.6b", 5, 3072), ("qwen3-0.6b", 3, 151_936), ("mixtral-8x7b", 3, 14_336)],
)
def test_what_vllm_would_not_share_out(name: str, num_ranks: int, width: int) -> None:
    spec = resolve_model(name).spec
    check_divides(spec, 2)
    with pytest.raises(ConfigError, match=f"a width of {width} can't be shared out to {num_ranks} ranks"):
        check_divides(spec, num_ranks)


def test_a_prompt_is_shared_out_too() -> None:
    model = resolve_model("llama-2-7b")
    whole, part = prefill_flop(model.spec, 100), prefill_flop(rank_spec(model.spec, 8), 100)
    assert part == whole // 8


@pytest.mark.parametrize(
    ("name", "num_ranks", "heads"),
    [
        ("qwen3-0.6b", 3, 16),
        ("qwen3-0.6b", 32, 16),
        ("qwen2.5-7b", 7, 4),
        ("qwen3.5-27b", 3, 16),
        ("deepseek-v3", 3, 128),
    ],
)
def test_heads_that_do_not_divide_are_refused(name: str, num_ranks: int, heads: int) -> None:
    spec = resolve_model(name).spec
    assert not can_share(spec, num_ranks)
    with pytest.raises(ConfigError, match=f"{heads} heads can't be shared out to {num_ranks} ranks"):
        rank_spec(spec, num_ranks)


def test_collectives_of_llama_2_13b_over_eight() -> None:
    """80 all-reduces of 5120 fp16 values, of which each rank sends 2 x 7 / 8: 80 x 17,920 B at 300 GB/s."""
    spec = resolve_model("llama-2-13b").spec
    assert collectives_floor_s(spec, 1, 8, 3e11) == pytest.approx(80 * 17_920 / 3e11)
    assert collectives_floor_s(spec, 16, 8, 3e11) == pytest.approx(16 * 80 * 17_920 / 3e11)
    assert collectives_floor_s(spec, 1, 8, None) is None
    assert collectives_floor_s(spec, 1, 1, 3e11) is None


def test_each_variant_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = Variants(resolve_model("qwen3-0.6b"))
    counted = []
    count = variants._count
    monkeypatch.setattr(variants, "_count", lambda *key: counted.append(key) or count(*key))
    for context in (1, 2):
        variants.rank(Scenario(context=context))
        variants.rank(Scenario(context=context, tensor_parallel=2))
        variants.whole(Scenario(context=context, tensor_parallel=4))
    assert counted == [(None, 1), (None, 2)]


def test_packed_weights_are_not_planned_narrower() -> None:
    model = resolve_model("qwen3-0.6b")
    packed = ResolvedModel("x", model.spec.model_copy(update={"quantization": "awq"}), None, model.tensors, "headers")
    with pytest.raises(ConfigError, match="awq already"):
        Variants(packed).rank(Scenario(weight_bits=8))
