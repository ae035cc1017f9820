"""A sweep over batches: what a batch's figures are, and where it leaves the memory wall."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_sweeps import NO_CACHE, swept, written

from harness.facts import RunFacts
from harness.specs.event import ChunkEvent, Event, ProbeEvent, SendEvent
from harness.specs.sweep import Sweep
from harness.specs.sweep_report import Knee, SweepReport
from harness.sweeps import analyse_sweep

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128]
ROOF, PEAK = 25e9, 1e12
WEIGHTS, ROW, POSITION = 1_192_099_840, 2048, 114_688
"""Bytes of Qwen3-0.6B; worked out in tests/test_traffic.py."""
LINEAR_FLOP = 2 * (440_401_920 + 151_936 * 1024)
CONTEXT = 8 + 20
"""In the middle of an answer of 40 tokens to a prompt of 8."""
OWN = ROW + (CONTEXT + 1) * POSITION
FLOP = LINEAR_FLOP + 28 * 4 * 2048 * CONTEXT


def batches(tmp_path: Path, values: list[int] = BATCHES, **engine: float) -> tuple[RunFacts, list[Event], SweepReport]:
    return swept(tmp_path, "batch", values, workload={"repeats": 2}, **engine)


def knee(report: SweepReport) -> Knee:
    assert report.knee is not None, report.knee_reason
    assert (report.ttft_fit_reason, report.split_reason) == (None, None)
    return report.knee


def again(facts: RunFacts, events: list[Event], values: tuple[int, ...] = (1, 128)) -> SweepReport:
    _, report = analyse_sweep(facts, Sweep(over="batch", values=values), events)
    return report


def test_a_step_sends_a_token_for_each_prompt(tmp_path: Path) -> None:
    _, events, report = batches(tmp_path, [1, 3])
    sent = {event.repeat: event.batch for event in events if isinstance(event, SendEvent)}
    assert sorted(sent.values()) == [1, 1, 3, 3]
    for event in events:
        if isinstance(event, ChunkEvent):
            assert len(event.token_ids) == sent[event.repeat]
    one, three = (point.analysis for point in report.points)
    assert (one.batch, three.batch) == (1, 3)
    assert one.output_tokens == three.output_tokens == 40, "of each prompt's answer"
    assert three.step_bytes == pytest.approx(WEIGHTS + 3 * OWN)
    assert three.step_flop == pytest.approx(3 * FLOP)
    assert three.floor_s == pytest.approx((WEIGHTS + 3 * OWN) / ROOF)


def test_a_batchs_throughput_is_that_of_all_its_prompts(tmp_path: Path) -> None:
    """n tokens of each of three prompts in the time from sending them to the last token."""
    _, _, report = batches(tmp_path, [1, 3])
    three = report.points[1].analysis
    assert three.ttft_s is not None and three.tpot_s is not None
    assert three.throughput_tokens_per_s == pytest.approx(3 * 40 / (three.ttft_s + 39 * three.tpot_s))
    assert three.ttft_s == pytest.approx(3 * (report.points[0].analysis.ttft_s or 0)), "taken in one after another"


def test_a_batchs_prompts_are_work_one_after_another(tmp_path: Path) -> None:
    """Three times the FLOP, the floors and the bytes of one, in three times its time."""
    _, _, report = batches(tmp_path, [1, 3])
    one, three = (point.analysis for point in report.points)
    for part in ("prefill_flop", "prefill_linear_flop", "prefill_attention_flop", "prefill_floor_s"):
        assert getattr(three, part) == pytest.approx(3 * getattr(one, part))
    for rate in ("prefill_achieved_bytes_per_s", "prefill_util_frac", "prefill_mfu_frac"):
        assert getattr(three, rate) == pytest.approx(getattr(one, rate))


def test_each_batch_is_judged_at_its_own_wall(tmp_path: Path) -> None:
    """0.95 of the roof up to the ridge; from there on arithmetic is the floor, and steps are at 0.95 of that."""
    _, _, report = swept(tmp_path, "batch", BATCHES, model=written(tmp_path, NO_CACHE), util_frac=0.95)
    found = [point.analysis for point in report.points]
    assert [a.bound for a in found] == ["memory"] * 6 + ["compute"] * 2
    assert [a.util_frac for a in found] == pytest.approx([0.95] * 8)
    assert {a.verdict for a in found} == {"at-wall"}
    assert [a.cause for a in found] == ["memory-bandwidth"] * 6 + ["compute"] * 2
    assert "FLOP" in found[-1].next_step
    for a in found[6:]:
        assert a.step_flop is not None
        assert a.floor_s == pytest.approx(a.step_flop / PEAK)
        assert a.mfu_frac == pytest.approx(0.95)


def test_the_knee_is_where_the_walls_meet(tmp_path: Path) -> None:
    """Weights over the roof, against what a request's arithmetic takes longer than its own bytes: batch 44."""
    _, _, report = batches(tmp_path)
    found = knee(report)
    assert found.predicted_batch == int(WEIGHTS / ROOF / (FLOP / PEAK - OWN / ROOF)) == 44
    assert found.predicted_reason is None
    assert 32 < found.measured_batch < 64
    assert found.measured_batch == pytest.approx(44, rel=0.15), "utilization must fall by a tenth before it is seen"
    assert found.ridge_flop_per_byte == pytest.approx(PEAK / ROOF, rel=1e-3)
    whole = round(found.measured_batch)
    assert found.flop_per_byte_at_knee == pytest.approx(whole * FLOP / (WEIGHTS + whole * OWN))


def test_the_knee_lies_between_measured_batches_on_a_straight_line_over_the_logarithm(tmp_path: Path) -> None:
    """By hand from the two neighbours' utilizations of the memory wall."""
    _, _, report = batches(tmp_path)
    bytes_s = {b: (WEIGHTS + b * OWN) / ROOF for b in (1, 32, 64)}
    tpot = {point.value: point.analysis.tpot_s or 0.0 for point in report.points}
    one, before, after = (bytes_s[b] / tpot[b] for b in (1, 32, 64))
    part = (before - 0.9 * one) / (before - after)
    assert 0 < part < 1
    assert knee(report).measured_batch == pytest.approx(math.exp(math.log(32) + part * math.log(2)), rel=1e-6)


def test_a_batch_of_two_thirds_is_found_as_well(tmp_path: Path) -> None:
    """Whatever utilization it starts from: a path at 0.6 of both walls bends at the same batch."""
    _, _, slow = batches(tmp_path, util_frac=0.6)
    _, _, fast = batches(tmp_path, util_frac=0.99)
    assert knee(slow).measured_batch == pytest.approx(knee(fast).measured_batch, rel=0.02)


def test_a_machine_still_at_the_memory_wall_has_no_knee(tmp_path: Path) -> None:
    _, _, report = batches(tmp_path, [1, 2, 4, 8])
    assert report.knee is None
    assert report.knee_reason == "batch 8 is still at the memory wall: sweep to larger ones"


def test_without_readings_there_is_no_knee(tmp_path: Path) -> None:
    facts, events, report = batches(tmp_path, [1, 128])
    assert report.knee is not None
    of_large = {event.repeat for event in events if isinstance(event, SendEvent) and event.batch == 128}
    left = [event for event in events if not (isinstance(event, ProbeEvent) and event.repeat in of_large)]
    assert again(facts, left).knee is None
    assert again(facts, left).knee_reason == "fewer than two batches have a roof"


def test_an_unknown_peak_leaves_the_measured_knee_alone(tmp_path: Path) -> None:
    facts, events, report = batches(tmp_path, [1, 16, 128])
    assert facts.probe is not None
    unknown = replace(facts, probe=facts.probe.model_copy(update={"peak_flop_per_s": {}}))
    found = knee(again(unknown, events))
    assert found.measured_batch == knee(report).measured_batch
    assert (found.predicted_batch, found.predicted_reason) == (None, "the peak is not known")
    assert found.ridge_flop_per_byte is None
    assert {point.analysis.bound for point in again(unknown, events).points} == {None}


def test_a_machine_that_is_compute_bound_at_once_says_so(tmp_path: Path) -> None:
    """Utilization of the memory wall falls from the first batch on; the walls have no batch to give."""
    _, _, report = batches(tmp_path, [1, 2, 4], peak_flop_per_s=2e10)
    assert knee(report).predicted_batch is None
    assert knee(report).predicted_reason == "compute-bound at batch 1 already"


def test_the_roof_of_the_prediction_is_that_of_the_last_batch_at_the_wall(tmp_path: Path) -> None:
    """Memory that is twice as fast beside the batch behind the knee."""
    facts, events, _ = swept(tmp_path, "batch", [1, 16, 128], every_s=None)
    behind = {event.repeat for event in events if isinstance(event, SendEvent) and event.batch == 128}

    def faster(event: Event) -> Event:
        if not isinstance(event, ProbeEvent) or event.repeat not in behind:
            return event
        return event.model_copy(
            update={"reading": event.reading.model_copy(update={"pass_bytes": 2 * event.reading.pass_bytes})}
        )

    found = again(facts, [faster(event) for event in events])
    assert [p.analysis.roof_read_bytes_per_s for p in found.points] == pytest.approx([ROOF, ROOF, 2 * ROOF])
    assert knee(found).ridge_flop_per_byte == pytest.approx(PEAK / ROOF, rel=1e-3)
