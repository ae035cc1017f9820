"""The run's row from scripted truth: rates, shares, and every warning with and without its reason."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis import analyse
from harness.bench import run_bench, run_facts
from harness.facts import RunFacts
from harness.records import load_events
from harness.specs.analysis import Analysis
from harness.specs.engine import OpChoice
from harness.specs.event import ChunkEvent, Event
from harness.specs.run import RunConfig

STEPS = 63
"""Of each of the scripted repeats."""


def made(tmp_path: Path, **engine: Any) -> tuple[RunFacts, list[Event], Analysis]:
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted", **engine}, "probe": {"every_s": None},
        "workload": {"input_tokens": 32, "output_tokens": STEPS + 1, "repeats": 5},
    }  # fmt: skip
    folder, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    assert record.analysis is not None
    return run_facts(record), load_events(folder), record.analysis


def test_rates_are_those_of_the_script(tmp_path: Path) -> None:
    """A roof of 25 GB/s, linears and cache at 0.8 of it, 10 ms idle a step, prefill at half of 1 TFLOP/s."""
    _, _, found = made(tmp_path, util_frac=0.8, gap_s=0.01)
    assert found.step_bytes is not None
    assert found.step_flop is not None
    assert found.floor_s == pytest.approx(found.step_bytes / 25e9)
    step_s = found.step_bytes / (0.8 * 25e9) + 0.01
    assert found.tpot_s == pytest.approx(step_s)
    assert found.achieved_bytes_per_s == pytest.approx(found.step_bytes / step_s)
    assert found.mfu_frac == pytest.approx(found.step_flop / step_s / 1e12)
    assert found.prefill_mfu_frac == pytest.approx(0.5)
    assert found.outside_kernels_frac == pytest.approx(0.01 / step_s, rel=1e-3)


def test_times_over_repeats_that_differ(tmp_path: Path) -> None:
    facts, events, found = made(tmp_path, repeat_noise_frac=0.3)
    requests, _ = analyse(facts, events)
    tpots = [request.tpot_s for request in requests if request.tpot_s is not None]
    ttfts = [request.ttft_s for request in requests if request.ttft_s is not None]
    assert len(tpots) == len(ttfts) == 5
    assert found.tpot_s == pytest.approx(np.median(tpots))
    assert found.tpot_p99_s == pytest.approx(np.percentile(tpots, 99))
    assert found.tpot_spread_s == pytest.approx(max(tpots) - min(tpots))
    decode_s = STEPS * sum(tpots)
    assert found.prefill_time_frac == pytest.approx(sum(ttfts) / (sum(ttfts) + decode_s))
    assert found.decode_time_frac == pytest.approx(decode_s / (sum(ttfts) + decode_s))


def test_the_shortest_repeat_must_have_enough_steps(tmp_path: Path) -> None:
    facts, events, _ = made(tmp_path)
    work = facts.config.workload.model_copy(update={"mode": "natural-stop"})
    facts = replace(facts, config=facts.config.model_copy(update={"workload": work}))
    ends = [i for i, event in enumerate(events) if isinstance(event, ChunkEvent) and event.repeat == 1][20:]
    _, found = analyse(facts, [event for i, event in enumerate(events) if i not in ends])
    assert found.verdict == "invalid"
    assert "19 decode steps" in found.reason


def slow_first_repeat(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
    first_s = next(event.time_s for event in events if isinstance(event, ChunkEvent))
    slower = [
        event.model_copy(update={"time_s": first_s + 2 * (event.time_s - first_s)})
        if isinstance(event, ChunkEvent) and event.repeat == 0 else event
        for event in events
    ]  # fmt: skip
    return facts, slower


def slow_behind_a_failed_one(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
    """Repeat 0 is not among the finished ones, and the first that is stands out."""
    renamed = [e.model_copy(update={"repeat": e.repeat + 1}) if hasattr(e, "repeat") else e for e in events]
    first_s = next(event.time_s for event in renamed if isinstance(event, ChunkEvent))
    return facts, [
        event.model_copy(update={"time_s": first_s + 2 * (event.time_s - first_s)})
        if isinstance(event, ChunkEvent) and event.repeat == 1 else event
        for event in renamed
    ]  # fmt: skip


def compiled_late(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
    late = {"late_compilations": ("Compiling a graph for shape 7", "done")}
    return replace(facts, engine=facts.engine.model_copy(update=late)), events


def counting(counted: int, answered: int) -> Callable[[RunFacts, list[Event]], tuple[RunFacts, list[Event]]]:
    def changed(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
        counts = {"counted_steps": counted, "answered_steps": answered}
        return replace(facts, engine=facts.engine.model_copy(update=counts)), events

    return changed


def unknown_cache(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
    return replace(facts, device=facts.device.model_copy(update={"last_level_cache_bytes": None})), events


def fewer_threads(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
    device = facts.device.model_copy(update={"kind": "cpu", "num_compute_units": 8})
    return replace(facts, device=device, engine=facts.engine.model_copy(update={"num_threads": 4})), events


def as_many_threads(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
    facts, events = fewer_threads(facts, events)
    return replace(facts, device=facts.device.model_copy(update={"num_compute_units": 4})), events


def buffer_of(caches: float) -> Callable[[RunFacts, list[Event]], tuple[RunFacts, list[Event]]]:
    def changed(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
        assert facts.probe is not None
        cache = int(facts.probe.reading_buffer_bytes / caches)
        return replace(facts, device=facts.device.model_copy(update={"last_level_cache_bytes": cache})), events

    return changed


def declared(share: float) -> Callable[[RunFacts, list[Event]], tuple[RunFacts, list[Event]]]:
    def changed(facts: RunFacts, events: list[Event]) -> tuple[RunFacts, list[Event]]:
        op = OpChoice(
            op="linear", role="all", shape="-", backend="x", contest_legal=True, layers="model", num_calls=2,
            phase="decode", read_bytes=int(share * facts.traffic.weight_read_bytes / 2),
        )  # fmt: skip
        return replace(facts, engine=facts.engine.model_copy(update={"ops": (op,)})), events

    return changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda facts, events: (facts, events), None),
        (slow_first_repeat, "repeat 0 took 2.0 times the others' TPOT"),
        (slow_behind_a_failed_one, "repeat 1 took 2.0 times the others' TPOT"),
        (compiled_late, "compiled after it was ready, 2 lines of its log: Compiling a graph"),
        (unknown_cache, "cache residency was not checked"),
        (fewer_threads, "ran on 4 of 8 cores"),
        (as_many_threads, None),
        (buffer_of(caches=3), "less than four caches"),
        (buffer_of(caches=4), None),
        (declared(0.25), "backends declare"),
        (declared(2.0), "backends declare"),
        (declared(0.995), None),
        (counting(39, 40), "ran in every layer in 39 of 40 decode steps"),
        (counting(41, 40), None),
    ],
)
def test_a_warning_for_each_doubt_and_for_nothing_else(tmp_path: Path, change: Any, words: str | None) -> None:
    facts, events, _ = made(tmp_path)
    _, found = analyse(*change(facts, events))
    assert len(found.warnings) == (words is not None)
    assert words is None or words in found.warnings[0]
