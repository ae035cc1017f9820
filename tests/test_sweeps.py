"""What the values of a sweep show together: order, points, the fit over prompts. The knee: test_sweeps_batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_sweeps import swept

from harness.bench import run_facts
from harness.facts import RunFacts
from harness.records import load_record
from harness.roof import reading_rate
from harness.specs.event import ChunkEvent, ContentionEvent, CpuWait, EndEvent, Event, PeakEvent, ProbeEvent, SendEvent
from harness.specs.probe import PeakReading
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig
from harness.specs.sweep import Sweep
from harness.specs.sweep_report import TtftFit
from harness.sweeps import analyse_sweep
from harness.workload import Point, points, schedule

LENGTHS = [256, 512, 1024, 2048]
A, B, C = 0.030, 2e-4, 3e-8
"""Seconds; seconds a token; seconds a pair of tokens."""


def config(over: str, values: Sequence[int], seed: int = 0, repeats: int = 6) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted"},
            "workload": {"input_tokens": 8, "repeats": repeats, "seed": seed},
            "sweep": {"over": over, "values": tuple(values)},
        }
    )  # fmt: skip


def test_every_value_stands_once_in_a_round() -> None:
    order = schedule(config("input_tokens", LENGTHS))
    assert len(order) == 6 * 4
    for round_ in range(6):
        assert sorted(point.input_tokens or 0 for point in order[4 * round_ : 4 * round_ + 4]) == LENGTHS


def test_rounds_are_shuffled_each_in_its_way_and_the_same_every_time() -> None:
    order = schedule(config("input_tokens", LENGTHS))
    rounds = {tuple(point.input_tokens for point in order[i : i + 4]) for i in range(0, 24, 4)}
    assert len(rounds) > 2
    assert schedule(config("input_tokens", LENGTHS)) == order
    assert schedule(config("input_tokens", LENGTHS, seed=1)) != order


def test_what_each_sweep_goes_over() -> None:
    assert points(config("context", [16, 32])) == [Point(16, skip_prompt=True), Point(32, skip_prompt=True)]
    assert points(config("input_tokens", [16, 32])) == [Point(16), Point(32)]
    assert points(config("batch", [1, 4])) == [Point(8, 1), Point(8, 4)]
    assert points(config("batch", [1, 4]).model_copy(update={"sweep": None})) == [Point(8)]


def test_requests_are_made_in_the_order_of_the_schedule(tmp_path: Path) -> None:
    facts, events, report = swept(tmp_path, "input_tokens", [256, 64, 1024])
    sent = [event.num_prompt_tokens for event in events if isinstance(event, SendEvent)]
    assert sent == [point.input_tokens for point in schedule(facts.config)]
    assert [point.value for point in report.points] == [64, 256, 1024], "though read from the smallest on"
    assert [point.analysis.input_tokens for point in report.points] == [64, 256, 1024]
    assert {point.analysis.num_repeats for point in report.points} == {3}


def test_figures_of_all_requests_stand_in_the_order_they_were_made(tmp_path: Path) -> None:
    facts, events, _ = swept(tmp_path, "input_tokens", LENGTHS)
    assert facts.config.sweep is not None
    requests, _ = analyse_sweep(facts, facts.config.sweep, events)
    assert [request.repeat for request in requests] == list(range(12))
    sent = [event.num_prompt_tokens for event in events if isinstance(event, SendEvent)]
    assert [request.num_prompt_tokens for request in requests] == sent


def of_value(events: Sequence[Event], value: int) -> set[int]:
    """Repeats of prompts of this length."""
    return {event.repeat for event in events if isinstance(event, SendEvent) and event.num_prompt_tokens == value}


def test_a_points_roof_and_waits_are_its_own(tmp_path: Path) -> None:
    """Readings around prompts of 512 tokens become twice as fast, and their cores were others' for a tenth."""
    facts, events, _ = swept(tmp_path, "input_tokens", LENGTHS, every_s=None)
    own, sweep = of_value(events, 512), facts.config.sweep
    assert sweep is not None

    def changed(event: Event) -> Event:
        if not isinstance(event, ProbeEvent) or event.repeat not in own:
            return event
        return event.model_copy(
            update={"reading": event.reading.model_copy(update={"pass_bytes": 2 * event.reading.pass_bytes})}
        )

    waits = [
        ContentionEvent(repeat=repeat, wall_s=1.0, wait=CpuWait(queued_s=0.1, others_s=0.1, stolen_s=0.0))
        for repeat in own
    ]
    assert all(reading_rate(event.reading) == pytest.approx(25e9) for event in events if isinstance(event, ProbeEvent))
    _, report = analyse_sweep(facts, sweep, [*map(changed, events), *waits])
    roofs = {point.value: point.analysis.roof_read_bytes_per_s for point in report.points}
    assert roofs == pytest.approx({256: 25e9, 512: 50e9, 1024: 25e9, 2048: 25e9})
    assert [point.analysis.cpu_wait_frac for point in report.points] == [None, pytest.approx(0.1), None, None]
    assert report.points[1].analysis.verdict == "unstable"
    assert report.points[0].analysis.verdict == "approaching"


def test_a_value_without_a_finished_request_has_no_point(tmp_path: Path) -> None:
    facts, events, _ = swept(tmp_path, "input_tokens", LENGTHS)
    gone = of_value(events, 2048)
    kept = [event for event in events if not (isinstance(event, EndEvent) and event.repeat in gone)]
    assert facts.config.sweep is not None
    _, report = analyse_sweep(facts, facts.config.sweep, kept)
    assert [point.value for point in report.points] == [256, 512, 1024]


def test_of_no_finished_request_nothing_is_said(tmp_path: Path) -> None:
    facts, _, _ = swept(tmp_path, "input_tokens", [64, 128])
    for over in ("input_tokens", "context", "batch"):
        requests, report = analyse_sweep(facts, Sweep(over=over, values=(64, 128)), [])
        assert (requests, report.points) == ((), ())
        assert (report.ttft_fit, report.split, report.knee) == (None, None, None)
    assert report.knee_reason == "fewer than two batches have a roof"
    _, report = analyse_sweep(facts, Sweep(over="input_tokens", values=(64, 128)), [])
    assert report.ttft_fit_reason == report.split_reason == "no request came to its end"


def prompts(
    lengths: Sequence[int], times: int = 3, slowed: Callable[[int], float] = lambda repeat: 1.0,
    peak: Callable[[int], float] = lambda repeat: 1e12,
) -> list[Event]:  # fmt: skip
    """Requests whose TTFT is A + B n + C n^2, slowed by a factor; peaks of products around each of them."""
    events: list[Event] = []
    for repeat, n in enumerate([*lengths] * times):
        ttft_s = (A + B * n + C * n * n) * slowed(repeat)
        at = 1000.0 * repeat
        peaks = [
            PeakEvent(repeat=repeat, place=place, reading=PeakReading(dtype="BF16", flop_per_s=factor * peak(repeat)))
            for place, factor in (("before", 0.9), ("after", 1.1))
        ]
        events += [
            peaks[0],
            SendEvent(repeat=repeat, time_s=at, num_prompt_tokens=n),
            *(ChunkEvent(repeat=repeat, time_s=at + ttft_s + i, token_ids=(7,)) for i in range(40)),
            EndEvent(repeat=repeat, time_s=at + ttft_s + 40),
            peaks[1],
        ]
    return events


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    """Of some sweep; what its events were does not matter."""
    found, _, _ = swept(tmp_path_factory.mktemp("facts"), "input_tokens", [16, 32], workload={"repeats": 1})
    return found


def fit_of(facts: RunFacts, events: Sequence[Event]) -> tuple[TtftFit | None, str | None]:
    _, report = analyse_sweep(facts, Sweep(over="input_tokens", values=(1, 2)), events)
    assert (report.ttft_fit is None) == (report.ttft_fit_reason is not None)
    return report.ttft_fit, report.ttft_fit_reason


def test_the_fit_finds_all_three_coefficients(facts: RunFacts) -> None:
    fit, _ = fit_of(facts, prompts(LENGTHS))
    assert fit is not None
    assert (fit.fixed_s, fit.per_token_s, fit.per_token_squared_s) == pytest.approx((A, B, C))
    assert fit.residual_frac < 1e-9
    assert fit.longest == 2048
    assert fit.quadratic_time_frac == pytest.approx(C * 2048**2 / (A + B * 2048 + C * 2048**2))
    assert fit.quadratic_time_interval_frac == pytest.approx((fit.quadratic_time_frac,) * 2)
    # 28 layers x 4 x 2048 FLOP a pair; 440,401,920 weights in the layers and 155,582,464 in the head
    attention = 28 * 4 * 2048 * (2048 * 2049 // 2)
    assert fit.quadratic_flop_frac == pytest.approx(
        attention / (attention + 2 * (2048 * 440_401_920 + 1024 * 151_936)), rel=1e-9
    )


def slow_now_and_then(repeat: int) -> float:
    """1 to 1.75, in an order that no length shares."""
    return 1 + (repeat * 7 % 16) / 20


def test_prompts_slowed_as_the_products_beside_them_are_fitted_as_if_nothing_were(facts: RunFacts) -> None:
    events = prompts(LENGTHS, 4, slow_now_and_then, lambda repeat: 1e12 / slow_now_and_then(repeat))
    fit, _ = fit_of(facts, events)
    assert fit is not None
    assert fit.peak_exponent == pytest.approx(1.0, abs=1e-3)
    assert fit.residual_frac < 1e-3
    middle = sorted(1 / slow_now_and_then(repeat) for repeat in range(16))
    at_median = 2 / (middle[7] + middle[8])
    found = (fit.fixed_s, fit.per_token_s, fit.per_token_squared_s)
    assert found == pytest.approx((at_median * A, at_median * B, at_median * C), rel=0.01), "at the median peak"


def test_half_as_slow_as_the_products_is_an_exponent_of_a_half(facts: RunFacts) -> None:
    fit, _ = fit_of(
        facts,
        prompts(LENGTHS, 4, lambda r: slow_now_and_then(r) ** 0.5, lambda r: 1e12 / slow_now_and_then(r)),
    )
    assert fit is not None
    assert fit.peak_exponent == pytest.approx(0.5, abs=1e-3)


def test_peaks_that_explain_nothing_have_no_weight(facts: RunFacts) -> None:
    """Steady prompts among products that were now slow, now fast."""
    fit, _ = fit_of(facts, prompts(LENGTHS, 4, peak=lambda repeat: 1e12 / slow_now_and_then(repeat)))
    assert fit is not None
    assert fit.peak_exponent < 1e-3
    assert (fit.fixed_s, fit.per_token_s, fit.per_token_squared_s) == pytest.approx((A, B, C), rel=0.01)


def test_without_peaks_the_prompts_are_fitted_as_they_are(facts: RunFacts) -> None:
    events = [event for event in prompts(LENGTHS) if not isinstance(event, PeakEvent)]
    fit, _ = fit_of(facts, events)
    assert fit is not None
    assert fit.peak_exponent == 0.0
    assert fit.per_token_squared_s == pytest.approx(C)


@pytest.mark.parametrize(
    ("lengths", "times", "words"),
    [
        ([256, 2048], 3, "2 lengths, 256 to 2048: at least 3 over 4 times are needed"),
        ([512, 1024, 2047], 3, "3 lengths, 512 to 2047: at least 3 over 4 times are needed"),
        ([512, 1024, 2048], 1, "too few requests: raise workload.repeats"),
    ],
)
def test_what_cannot_carry_a_fit_says_why(facts: RunFacts, lengths: list[int], times: int, words: str) -> None:
    assert fit_of(facts, prompts(lengths, times)) == (None, words)
    assert fit_of(facts, prompts([512, 1024, 2048], 2))[0] is not None


@pytest.mark.filterwarnings("error")
def test_as_many_requests_as_numbers_to_find_are_too_few_whatever_the_peaks(facts: RunFacts) -> None:
    for lengths in ([512, 1024, 2048], LENGTHS):
        events = prompts(lengths, 1, peak=lambda repeat: 1e12 / slow_now_and_then(repeat))
        assert fit_of(facts, events) == (None, "too few requests: raise workload.repeats")


def test_prompts_that_were_not_computed_have_no_fit(tmp_path: Path) -> None:
    _, _, report = swept(tmp_path, "context", [64, 256, 1024])
    assert report.ttft_fit is None
    assert report.ttft_fit_reason == "no prompt was computed: sweep over input_tokens"


def test_a_scripted_machines_prompts_are_fitted(tmp_path: Path) -> None:
    """Half of 1 TFLOP/s for all FLOP: the quadratic share of time is that of FLOP."""
    _, _, report = swept(tmp_path, "input_tokens", LENGTHS)
    fit = report.ttft_fit
    assert fit is not None
    assert fit.quadratic_time_frac == pytest.approx(fit.quadratic_flop_frac, rel=1e-3)
    assert fit.per_token_squared_s == pytest.approx(28 * 4 * 2048 / 2 / 0.5e12, rel=1e-6)
    assert report.knee is None and report.knee_reason is None


def test_a_record_of_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    facts, _, report = swept(tmp_path, "input_tokens", [64, 256, 1024])
    (folder,) = tmp_path.glob("*-scripted-t-*")
    record: Any = load_record(folder)
    assert isinstance(record, RunRecord)
    assert (record.sweep, record.analysis) == (report, None)
    assert run_facts(record) == facts
