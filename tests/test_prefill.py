"""The judgement of a prompt: its floors by hand, the bands, the peak of its own moment."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_sweeps import ALTERNATING, NO_CACHE, swept

from harness.analysis import analyse
from harness.bench import run_bench, run_facts
from harness.facts import RunFacts
from harness.models import resolve_model
from harness.prefill import (
    Prompt,
    chunk_bounds,
    chunk_floor,
    judge_prefill,
    main_wall,
    peaks_around,
    prompt_chunks,
)
from harness.records import load_events
from harness.roofline import Floor
from harness.specs.analysis import Analysis
from harness.specs.event import Event, PeakEvent, ProbeEvent
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.model import ModelSpec
from harness.specs.probe import PeakReading
from harness.specs.run import NativeEngine, RunConfig
from harness.traffic import chunk_flop, decode_traffic, prompt_flop

QWEN = resolve_model("qwen3-0.6b")
TRAFFIC = decode_traffic(QWEN.spec, QWEN.tensors, QWEN.tensors_source)
ROOF, PEAK = 25e9, 1e12
WEIGHTS = 1_192_099_840
LAYERS, HEAD = 2 * 440_401_920, 2 * 151_936 * 1024
"""FLOP of a token in all layers' products, and of the last one in the head."""
PAIR = 28 * 4 * 2048
"""FLOP of a pair of positions."""

SPECS: dict[str, ModelSpec] = {
    "dense": QWEN.spec,
    "all layers with a window": resolve_model("mistral-7b-v0.1").spec,
    "every other layer with a window": model_spec_from_hf(ALTERNATING),
    "latent attention and experts": resolve_model("deepseek-v2-lite").spec,
    "experts": resolve_model("qwen3-30b-a3b").spec,
    "hybrid": resolve_model("qwen3.5-27b").spec,
    "no cache": model_spec_from_hf(NO_CACHE),
}


@given(st.sampled_from(sorted(SPECS)), st.integers(1, 20_000), st.integers(1, 6_000))
def test_the_chunks_of_a_prompt_do_the_work_of_the_prompt(name: str, num_tokens: int, chunk: int) -> None:
    """Of each kind, but for the head, which the last token alone goes through."""
    spec, bounds = SPECS[name], chunk_bounds(num_tokens, chunk)
    parts = [chunk_flop(spec, *bound) for bound in bounds]
    whole = prompt_flop(spec, num_tokens)
    head = 2 * spec.vocab_size * spec.hidden_size
    assert sum(part.linear for part in parts) == whole.linear - head
    assert sum(part.attention for part in parts) == whole.attention
    assert sum(part.state for part in parts) == whole.state


@given(st.integers(1, 5000), st.one_of(st.none(), st.integers(1, 6000)))
def test_chunks_follow_each_other_to_the_end(num_tokens: int, chunk: int | None) -> None:
    bounds = chunk_bounds(num_tokens, chunk)
    assert bounds[0][0] == 0 and bounds[-1][1] == num_tokens
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    sizes = [end - begin for begin, end in bounds]
    assert set(sizes[:-1]) <= {chunk} and 0 < sizes[-1] <= (chunk or num_tokens)


def test_chunks_by_hand() -> None:
    assert chunk_bounds(9, 4) == [(0, 4), (4, 8), (8, 9)]
    assert chunk_bounds(8, 4) == [(0, 4), (4, 8)]
    assert chunk_bounds(3, 4) == [(0, 3)]
    assert chunk_bounds(9, None) == [(0, 9)]


def floors_of(num_tokens: int, chunk: int) -> list[Floor]:
    return [chunk_floor(part, ROOF, PEAK) for part in prompt_chunks(QWEN.spec, TRAFFIC, num_tokens, chunk)]


def test_a_few_tokens_wait_for_the_weights() -> None:
    """Four tokens: 4 FLOP for each weight of two bytes, where the ridge is at 40 a byte."""
    (floor,) = floors_of(4, 512)
    assert floor.memory_s == pytest.approx(WEIGHTS / ROOF)
    assert floor.compute_s == pytest.approx((4 * LAYERS + HEAD + 10 * PAIR) / PEAK)
    assert (floor.bound, main_wall([floor])) == ("memory", "memory")


def test_a_long_prompt_is_arithmetic_and_its_rest_is_the_weights() -> None:
    """1,000 tokens by chunks of 480: two chunks of arithmetic, and 40 tokens that still read all weights."""
    floors = floors_of(1000, 480)
    pairs = [480 * 481 // 2, 480 * 480 + 480 * 481 // 2, 40 * 960 + 40 * 41 // 2]
    flops = [480 * LAYERS + pairs[0] * PAIR, 480 * LAYERS + pairs[1] * PAIR, 40 * LAYERS + HEAD + pairs[2] * PAIR]
    assert [floor.compute_s for floor in floors] == pytest.approx([flop / PEAK for flop in flops])
    assert [floor.memory_s for floor in floors] == pytest.approx([WEIGHTS / ROOF] * 3)
    assert [floor.bound for floor in floors] == ["compute", "compute", "memory"]
    assert main_wall(floors) == "compute"
    for chunk, times in ((480, 3), (None, 1)):
        chunks = prompt_chunks(QWEN.spec, TRAFFIC, 1000, chunk)
        assert [part.weight_bytes for part in chunks] == [WEIGHTS] * times
        assert (chunks[0].begin, chunks[-1].end) == (0, 1000)


def test_a_prompts_tokens_choose_experts_together() -> None:
    model = resolve_model("qwen3-30b-a3b")
    traffic = decode_traffic(model.spec, model.tensors, model.tensors_source)
    found = [chunk.weight_bytes for chunk in prompt_chunks(model.spec, traffic, 6, 4)]
    assert found == [traffic.step_weight_bytes(4), traffic.step_weight_bytes(2)]
    assert traffic.step_weight_bytes(1) < traffic.step_weight_bytes(2) < traffic.step_weight_bytes(4)


def test_each_prompt_is_held_against_its_own_length(tmp_path: Path) -> None:
    """Texts of 2, 3 and 60 tokens, all at half of the script's peak: the middle one's FLOP would fit no other."""
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted"},
        "workload": {"prompts": ["w " * n for n in (2, 3, 60, 60, 60)], "output_tokens": 34, "repeats": 4},
    }  # fmt: skip
    _, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    assert record.analysis is not None
    assert record.analysis.prefill_mfu_frac == pytest.approx(0.5)


def test_the_main_wall_has_more_than_half_of_the_floors_time() -> None:
    memory, compute = Floor(memory_s=2.0, compute_s=1.0), Floor(memory_s=1.0, compute_s=2.0)
    assert main_wall([memory, compute, compute]) == "compute"
    assert main_wall([memory, compute]) == "memory"
    assert main_wall([memory, Floor(memory_s=1.0, compute_s=2.1)]) == "compute"


def prompts(*utils: float, floor: Floor | None = None) -> list[Prompt]:
    """One repeat each at these utilizations."""
    floor = floor or Floor(memory_s=0.5, compute_s=1.0)
    return [Prompt(ttft_s=floor.floor_s / util, flop=1, floors=[floor], peak_flop_per_s=PEAK) for util in utils]


@pytest.mark.parametrize(
    ("util", "verdict"),
    [(0.5, "underfed"), (0.699, "underfed"), (0.701, "approaching"), (0.8, "approaching"), (0.899, "approaching"),
     (0.901, "at-wall"), (0.95, "at-wall"), (1.09, "at-wall"), (1.11, "invalid"), (1.3, "invalid")],
)  # fmt: skip
def test_bands(util: float, verdict: str) -> None:
    found = judge_prefill(prompts(util, util, util), None)
    assert found.verdict == verdict
    assert found.util_frac == pytest.approx(util)
    assert found.interval_frac == pytest.approx((util, util))
    assert f"utilization {util:.3f}" in found.reason
    assert "compute" in found.reason


def test_the_reason_names_the_wall() -> None:
    slow = Floor(memory_s=1.0, compute_s=0.5)
    assert "the memory floor is 80.0 %" in judge_prefill(prompts(0.8, floor=slow), None).reason
    assert "the compute floor is 80.0 %" in judge_prefill(prompts(0.8), None).reason
    assert "the machine's memory wall" in judge_prefill(prompts(1.2, floor=slow), None).reason


def test_one_prompt_has_no_interval() -> None:
    found = judge_prefill(prompts(0.8), None)
    assert (found.verdict, found.interval_frac) == ("approaching", None)


def test_prompts_that_disagree_are_unstable() -> None:
    found = judge_prefill(prompts(0.7, 0.8, 0.9), None)
    assert found.verdict == "unstable"
    assert "wider than 0.1" in found.reason
    assert found.interval_frac is not None and found.util_frac == pytest.approx(0.8)
    assert judge_prefill(prompts(0.79, 0.8, 0.81), None).verdict == "approaching"


def test_prompts_whose_cores_others_held_are_unstable_whatever_else() -> None:
    for util in (0.5, 0.95, 1.3):
        found = judge_prefill(prompts(util, util), 0.05)
        assert found.verdict == "unstable"
        assert "5.0 % of the time" in found.reason
    assert judge_prefill(prompts(0.5, 0.5), 0.01).verdict == "underfed"


def test_without_a_wall_there_is_no_verdict() -> None:
    found = judge_prefill([], 0.5)
    assert (found.verdict, found.util_frac, found.interval_frac) == ("no-peak", None, None)


def made(tmp_path: Path, workload: dict[str, Any] | None = None, **engine: Any) -> tuple[RunFacts, list[Event]]:
    """A run of the scripted engine, whose prompts go at half of its peak."""
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted", **engine},
        "workload": {"input_tokens": 400, "output_tokens": 40, "repeats": 3, **(workload or {})},
    }  # fmt: skip
    folder, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    return run_facts(record), load_events(folder)


def analysis(facts: RunFacts, events: Sequence[Event]) -> Analysis:
    return analyse(facts, events)[1]


def test_the_row_of_a_compute_bound_prompt(tmp_path: Path) -> None:
    found = analysis(*made(tmp_path))
    linear, attention = 400 * LAYERS + HEAD, 400 * 401 // 2 * PAIR
    assert (found.prefill_linear_flop, found.prefill_attention_flop, found.prefill_state_flop) == (linear, attention, 0)
    assert found.prefill_flop == linear + attention
    assert found.prefill_floor_s == pytest.approx((linear + attention) / PEAK)
    assert (found.prefill_verdict, found.prefill_bound) == ("underfed", "compute")
    assert (found.prefill_util_frac, found.prefill_mfu_frac) == pytest.approx((0.5, 0.5))
    assert found.prefill_util_interval_frac == pytest.approx((0.5, 0.5))
    assert found.prefill_achieved_bytes_per_s == pytest.approx(WEIGHTS / (found.ttft_s or 0))


def test_the_row_of_a_memory_bound_prompt(tmp_path: Path) -> None:
    """Of two tokens, taken in at half of the peak: faster than the weights could be read, so no prompt at all."""
    found = analysis(*made(tmp_path, {"input_tokens": 2}))
    assert found.prefill_floor_s == pytest.approx(WEIGHTS / ROOF)
    assert (found.prefill_verdict, found.prefill_bound) == ("invalid", "memory")
    assert found.prefill_mfu_frac == pytest.approx(0.5)
    assert found.prefill_util_frac == pytest.approx(WEIGHTS / ROOF / ((2 * LAYERS + HEAD + 3 * PAIR) / 0.5 / PEAK))


def test_an_engine_that_takes_chunks_reads_the_weights_for_each(tmp_path: Path) -> None:
    facts, events = made(tmp_path)
    native = facts.config.model_copy(update={"engine": NativeEngine(kind="native", prefill_chunk=16)})
    chunked = analysis(replace(facts, config=native), events)
    whole = analysis(facts, events)
    assert (facts.prefill_chunk, replace(facts, config=native).prefill_chunk) == (None, 16)
    assert chunked.prefill_achieved_bytes_per_s == pytest.approx(25 * (whole.prefill_achieved_bytes_per_s or 0))
    assert chunked.prefill_bound == "memory", "16 tokens are less than the ridge"
    assert chunked.prefill_floor_s == pytest.approx(25 * WEIGHTS / ROOF)


def peaks(values: dict[int, tuple[float, float]]) -> list[Event]:
    return [
        PeakEvent(repeat=repeat, place=place, reading=PeakReading(dtype="BF16", flop_per_s=value))
        for repeat, both in values.items()
        for place, value in zip(("before", "after"), both, strict=True)
    ]


def test_the_peak_of_a_repeat_is_the_mean_of_both_sides() -> None:
    assert peaks_around(peaks({0: (1e12, 3e12), 2: (5e11, 5e11)})) == {0: 2e12, 2: 5e11}
    assert peaks_around([]) == {}


def test_prompts_are_held_against_the_peak_of_their_own_moment(tmp_path: Path) -> None:
    """Products beside the prompts ran at 0.6 of the survey's peak: a prompt at a half of that peak is at 0.83."""
    facts, events = made(tmp_path)
    others = [event for event in events if not isinstance(event, PeakEvent)]
    assert len(events) - len(others) == 6, "before and after each of three"
    now = analysis(facts, [*others, *peaks(dict.fromkeys(range(3), (0.5e12, 0.7e12)))])
    assert (now.prefill_util_frac, now.prefill_mfu_frac) == pytest.approx((0.5 / 0.6, 0.5 / 0.6))
    assert now.prefill_verdict == "approaching"
    survey = analysis(facts, others)
    assert survey.prefill_util_frac == pytest.approx(0.5), "without readings the survey's"
    uneven = analysis(facts, [*others, *peaks({0: (0.4e12,) * 2, 1: (0.8e12,) * 2, 2: (1.6e12,) * 2})])
    assert uneven.prefill_verdict == "unstable"
    assert uneven.prefill_util_frac == pytest.approx((0.5 / 0.4 + 0.5 / 0.8 + 0.5 / 1.6) / 3)


def test_without_any_peak_the_prompt_is_not_judged(tmp_path: Path) -> None:
    facts, events = made(tmp_path)
    assert facts.probe is not None
    unknown = replace(facts, probe=facts.probe.model_copy(update={"peak_flop_per_s": {}}))
    found = analysis(unknown, [event for event in events if not isinstance(event, PeakEvent)])
    assert found.prefill_verdict == "no-peak"
    assert (found.prefill_util_frac, found.prefill_mfu_frac, found.prefill_floor_s) == (None, None, None)
    assert found.prefill_flop and found.prefill_achieved_bytes_per_s and found.ttft_s


def test_without_a_roof_the_prompt_is_not_judged(tmp_path: Path) -> None:
    facts, events = made(tmp_path)
    found = analysis(facts, [event for event in events if not isinstance(event, ProbeEvent)])
    assert (found.prefill_verdict, found.prefill_util_frac) == ("no-peak", None)


def test_a_prompt_that_was_skipped_has_no_figures(tmp_path: Path) -> None:
    facts, events, report = swept(tmp_path, "context", [64, 128])
    for point in report.points:
        a = point.analysis
        assert (a.ttft_s, a.throughput_tokens_per_s, a.prefill_verdict, a.prefill_reason) == (None,) * 4
        assert (a.prefill_util_frac, a.prefill_mfu_frac, a.prefill_achieved_bytes_per_s) == (None,) * 3
        assert a.prefill_time_frac is None, "not 0: it is not known"
        assert a.tpot_s and a.util_frac == pytest.approx(0.8)
    requests, _ = analyse(facts, events)
    assert {(request.ttft_s, request.throughput_tokens_per_s) for request in requests} == {(None, None)}
    assert not any(isinstance(event, PeakEvent) for event in events), "no prompt, no products beside it"
