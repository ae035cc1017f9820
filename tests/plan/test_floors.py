"""The largest batch that is still memory-bound, by hand and against the floors themselves."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from harness import batching
from harness.models import resolve_model
from harness.plan.floors import prompt_floor, step_floor
from harness.plan.variants import Variants, Work
from harness.specs.plan import Scenario, Walls

MODELS = ["llama-2-13b", "qwen3-0.6b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3.5-27b", "deepseek-v2-lite"]


@cache
def work(name: str) -> Work:
    return Variants(resolve_model(name)).rank(Scenario())


def walls(roof: float = 2e12, peak: float | None = 3e14) -> Walls:
    return Walls(
        device="x", roof_read_bytes_per_s=roof, roof_source="this test", roof_unverified=False, peak_flop_per_s=peak,
        peak_source=None, memory_bytes=None, link_bytes_per_s=None, link_source=None,
    )  # fmt: skip


def largest_batch_memory_bound(of: Work, at: Walls, context: int) -> tuple[int | None, str | None]:
    return batching.largest_batch_memory_bound(of.traffic, context, at.roof_read_bytes_per_s, at.peak_flop_per_s)


def test_llama_2_13b_at_context_one_by_hand() -> None:
    """Weights 25,704,048,640 B, for each request a row and two positions of 819,200 B; FLOP 25.7e9 a request."""
    flop = work("llama-2-13b").traffic.step_flop(1)
    assert flop == 2 * (12_852_024_320 - 81 * 5120) + 40 * 4 * 5120
    by_hand = int(25_704_048_640 / 2e12 / (flop / 3e14 - (10_240 + 2 * 819_200) / 2e12))
    assert largest_batch_memory_bound(work("llama-2-13b"), walls(), 1) == (by_hand, None)
    assert 150 < by_hand < 154, "about the ridge, as each byte of fp16 weights is one FLOP a request"


def test_a_long_context_keeps_any_batch_memory_bound() -> None:
    largest, reason = largest_batch_memory_bound(work("llama-2-13b"), walls(), 4096)
    assert largest is None
    assert reason is not None and reason.startswith("memory-bound at any batch")
    assert step_floor(work("llama-2-13b"), walls(), 4096, 1 << 40).bound == "memory"


def test_a_slow_device_is_compute_bound_at_once() -> None:
    assert largest_batch_memory_bound(work("qwen3-0.6b"), walls(peak=1e12), 1) == (
        None,
        "compute-bound at batch 1 already",
    )
    assert largest_batch_memory_bound(work("qwen3-0.6b"), walls(peak=None), 1) == (None, "the peak is not known")


@given(
    st.sampled_from(MODELS),
    st.floats(1e10, 1e13),
    st.floats(1e10, 1e16),
    st.one_of(st.integers(1, 8), st.integers(1, 4096)),
)
def test_it_is_the_last_memory_bound_batch(name: str, roof: float, peak: float, context: int) -> None:
    at = walls(roof, peak)
    largest, reason = largest_batch_memory_bound(work(name), at, context)
    bounds = [step_floor(work(name), at, context, batch).bound for batch in (1, 2, 8, 64, 1000, 1 << 30)]
    assert bounds == sorted(bounds, reverse=True), "memory first, then compute, and never back"
    if largest is not None:
        assert reason is None
        assert step_floor(work(name), at, context, largest).bound == "memory"
        assert step_floor(work(name), at, context, largest + 1).bound == "compute"
    else:
        assert set(bounds) == ({"compute"} if reason == "compute-bound at batch 1 already" else {"memory"})


def test_a_mixture_stays_memory_bound_for_longer_than_its_active_weights_say() -> None:
    """More requests bring more experts: Mixtral's two of eight would turn at the ridge, all eight at four times it."""
    largest, _ = largest_batch_memory_bound(work("mixtral-8x7b"), walls(), 1)
    assert largest is not None
    active = work("mixtral-8x7b").traffic.weight_read_bytes / work("mixtral-8x7b").traffic.linear_flop * 150
    assert 3 * active < largest < 4 * active


def test_a_prompts_tokens_choose_experts_together() -> None:
    traffic = work("mixtral-8x7b").traffic
    assert prompt_floor(work("mixtral-8x7b"), walls(), 5).memory_s == traffic.step_weight_bytes(5) / 2e12
