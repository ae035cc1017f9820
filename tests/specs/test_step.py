"""A step of several requests: weights once, everything else for each, and of experts those that any token takes."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models import model_names, resolve_model
from harness.specs.layout import model_tensors
from harness.specs.model import ModelSpec
from harness.specs.step import DecodeTraffic
from harness.traffic import decode_traffic

BATCHES = st.integers(1, 1 << 20)


@cache
def traffic_of(name: str) -> DecodeTraffic:
    model = resolve_model(name)
    return decode_traffic(model.spec, model.tensors, model.tensors_source)


def test_weights_are_read_once_and_caches_for_each_request() -> None:
    traffic = traffic_of("qwen3-0.6b")
    assert traffic.routed_experts == ()
    assert traffic.experts_assumption is None
    assert traffic.step_bytes(100, 8) == 1_192_099_840 + 8 * (2048 + 101 * 114_688)
    assert traffic.step_flop(100, 8) == 8 * traffic.step_flop(100)


def test_state_is_moved_for_each_request() -> None:
    traffic = traffic_of("qwen3.5-27b")
    one_more = traffic.step_bytes(10, 3) - traffic.step_bytes(10, 2)
    assert one_more == 10_240 + 11 * 65_536 + 2 * 153_944_064


def test_eight_tokens_of_mixtral_read_7_2_of_8_experts() -> None:
    """Each token misses an expert with 3/4: 8 (1 - (3/4)^8) = 7.199 of 8 experts in each of 32 layers."""
    traffic = traffic_of("mixtral-8x7b")
    (routed,) = traffic.routed_experts
    assert (routed.num_experts, routed.experts_per_token) == (8, 2)
    expert = 2 * 3 * 14_336 * 4096
    assert routed.num_bytes == 32 * 8 * expert
    assert traffic.experts_assumption == "uniform routing"
    distinct = 8 * (1 - 0.75**8)
    assert routed.num_distinct(8) == pytest.approx(distinct) == pytest.approx(7.1991, abs=1e-4)
    assert traffic.step_weight_bytes(8) == round(25_497_706_496 + 32 * (distinct - 2) * expert)
    assert traffic.step_weight_bytes(2) - traffic.step_weight_bytes(1) == 32 * 1.5 * expert


def test_mixtures_of_other_numbers_stand_apart() -> None:
    """Layers in turn with two of four experts, one of three, and none; an expert is 3 x 16 x 64 values of 2 bytes."""
    expert = {"kind": "gated-mlp", "intermediate_size": 16}
    mixer = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    mlps = [{"kind": "moe", "num_experts": e, "experts_per_token": k, "expert": expert} for e, k in ((4, 2), (3, 1))]
    spec = ModelSpec.model_validate(
        {
            "model_type": "x", "hidden_size": 64, "kinds": [{"mixer": mixer, "mlp": mlp} for mlp in (*mlps, expert)],
            "pattern": [0, 1, 2, 0, 1, 2], "vocab_size": 100, "max_position_embeddings": 128,
            "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "dtype": "BF16",
        }
    )  # fmt: skip
    traffic = decode_traffic(spec, model_tensors(spec), "config")
    found = {(r.num_experts, r.experts_per_token): r.num_bytes for r in traffic.routed_experts}
    assert found == {(4, 2): 2 * 4 * 6144, (3, 1): 2 * 3 * 6144}
    more = 2 * 4 * 6144 * (1 / 2 - 1 / 4) + 2 * 3 * 6144 * (2 / 3 - 4 / 9)
    assert traffic.step_weight_bytes(2) - traffic.weight_read_bytes == round(more)


@pytest.mark.parametrize(("name", "experts"), [("deepseek-v3", 256), ("qwen3-next-80b-a3b", 512)])
def test_a_very_large_batch_reads_every_expert(name: str, experts: int) -> None:
    traffic = traffic_of(name)
    (routed,) = traffic.routed_experts
    assert routed.num_distinct(100_000) == experts
    read_by_all = traffic.weight_read_bytes - routed.num_bytes * routed.experts_per_token // experts
    assert traffic.step_weight_bytes(100_000) == read_by_all + routed.num_bytes


@given(st.sampled_from(model_names()), BATCHES, st.integers(1, 4096))
def test_bytes_lie_between_those_of_one_token_and_all_experts(name: str, batch: int, context: int) -> None:
    traffic = traffic_of(name)
    assert traffic.step_bytes(context, 1) == traffic.step_bytes(context)
    assert traffic.weight_read_bytes <= traffic.step_weight_bytes(batch) <= traffic.step_weight_bytes(batch + 1)
    assert traffic.step_weight_bytes(batch) <= traffic.resident_weight_bytes + traffic.embedding_row_bytes
    assert traffic.step_bytes(context, batch) < traffic.step_bytes(context, batch + 1)
    assert traffic.step_bytes(context, batch) <= batch * traffic.step_bytes(context)
    assert traffic.step_flop(context, batch) == batch * traffic.step_flop(context)


@given(st.sampled_from(["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"]), BATCHES)
def test_distinct_experts_are_no_fewer_than_one_tokens_and_no_more_than_all(name: str, batch: int) -> None:
    for routed in traffic_of(name).routed_experts:
        assert routed.num_distinct(1) == routed.experts_per_token
        assert routed.experts_per_token <= routed.num_distinct(batch) <= routed.num_experts
        assert routed.num_distinct(batch) <= batch * routed.experts_per_token
