"""Events to figures, each by hand."""

import math

import pytest

from harness.figures import cpu_wait_frac, request_figures, utilization
from harness.repeats import finished_repeats
from harness.roof import find_roof, reading_rate
from harness.specs.event import (
    ChunkEvent,
    ContentionEvent,
    CpuWait,
    EndEvent,
    Event,
    KernelReadEvent,
    PauseEvent,
    ProbeEvent,
    SendEvent,
)
from harness.specs.probe import ProbeReading
from harness.specs.step import DecodeTraffic

TRAFFIC = DecodeTraffic(
    tensors_source="config", weight_read_bytes=1_000_000, embedding_row_bytes=10, kv_bytes_per_context_token=100,
    resident_weight_bytes=1_000_000, linear_flop=1_000_000, attention_flop_per_context_token=50,
)  # fmt: skip


def around(repeat: int, before: float, events: list[Event], after: float) -> list[Event]:
    """A repeat's events between its two readings."""
    return [
        ProbeEvent(repeat=repeat, place="before", reading=reading(before)),
        *events,
        ProbeEvent(repeat=repeat, place="after", reading=reading(after)),
    ]


def reading(rate: float) -> ProbeReading:
    return ProbeReading(pass_bytes=1000, passes_s=(1000 / rate, 1000 / rate, 9e9), variant="x")


def request(repeat: int, sent: float, arrivals: list[float], prompt: int = 5) -> list[Event]:
    events: list[Event] = [SendEvent(repeat=repeat, time_s=sent, num_prompt_tokens=prompt)]
    events += [ChunkEvent(repeat=repeat, time_s=time, token_ids=(7,)) for time in arrivals]
    return [*events, EndEvent(repeat=repeat, time_s=(arrivals or [sent])[-1] + 9)]


def figures(events: list[Event], index: int = 0):
    repeats = finished_repeats(events)
    return request_figures(repeats[index], TRAFFIC, find_roof(events))


def test_ttft_tpot_and_throughput() -> None:
    found = figures(request(0, 10.0, [12.0, 12.5, 13.5, 14.0]))
    assert found.ttft_s == 2.0
    assert found.tpot_s == pytest.approx(2.0 / 3)  # (14 - 12) / (4 - 1); the end, 9 s later, is no token
    assert found.throughput_tokens_per_s == 1.0  # 4 tokens in 14 - 10 s
    assert found.util_frac is None, "no probe, no utilization"


def test_one_token_has_no_tpot() -> None:
    found = figures(request(0, 10.0, [12.0]))
    assert (found.ttft_s, found.tpot_s, found.util_frac) == (2.0, None, None)


def test_no_token_has_no_figures() -> None:
    found = figures(request(0, 10.0, []))
    assert (found.num_output_tokens, found.ttft_s, found.tpot_s, found.throughput_tokens_per_s) == (0, None, None, None)


def test_empty_chunks_are_no_first_token() -> None:
    """A role-only chunk, or one with empty content, carries no token: it must not end the wait."""
    events = request(0, 10.0, [12.0, 13.0])
    events.insert(1, ChunkEvent(repeat=0, time_s=10.001, token_ids=()))
    assert figures(events).ttft_s == 2.0


def test_several_tokens_in_a_chunk_count_as_several() -> None:
    events = request(0, 0.0, [1.0])
    events.insert(2, ChunkEvent(repeat=0, time_s=3.0, token_ids=(1, 2, 3)))
    repeat = finished_repeats(events)[0]
    assert (repeat.num_tokens, repeat.num_decode_steps) == (4, 3)
    assert figures(events).tpot_s == pytest.approx(2.0 / 3)


def test_contexts_of_the_steps() -> None:
    """5 prompt tokens: the step that yields token 2 takes token 1 in at position 5, so it attends to 6 positions."""
    assert list(finished_repeats(request(0, 0.0, [1.0, 2.0, 3.0]))[0].step_contexts()) == [6, 7]


def test_utilization_is_floors_over_times() -> None:
    events = around(0, 1e6, request(0, 0.0, [1.0, 3.0, 5.0]), 1e6)
    floor_s = (2 * (1_000_000 + 10) + 100 * (7 + 8)) / 1e6  # contexts 6 and 7, each with one position written
    found = figures(events)
    assert found.roof_read_bytes_per_s == pytest.approx(1e6)
    assert found.util_frac == pytest.approx(floor_s / 4.0)
    util, interval, method = utilization(finished_repeats(events), TRAFFIC, find_roof(events))
    assert util == pytest.approx(floor_s / 4.0)
    assert interval == pytest.approx((util * math.exp(-0.03), util * math.exp(0.03)))
    assert method == "the roof's uncertainty; one repeat"


def test_each_repeat_is_judged_by_its_own_readings() -> None:
    events = around(0, 1e6, request(0, 0.0, [1.0, 2.0]), 3e6) + around(1, 3e6, request(1, 9.0, [10.0, 11.0]), 5e6)
    roof = find_roof(events)
    assert [figures(events, i).roof_read_bytes_per_s for i in (0, 1)] == pytest.approx([2e6, 4e6])
    assert roof.drift_frac == pytest.approx(4.0)
    assert roof.uncertainty_frac == pytest.approx((0.5 + 0.25) / 2)  # half of 2/2 and of 2/4; a step in each
    assert roof.source == "probe"


def test_a_pause_is_in_no_figure_and_its_reading_parts_the_roof() -> None:
    """Steps of 1 s; after the second the probe reads for 7 s, and memory is three times as fast from then on."""
    events = around(0, 1e6, request(0, 0.0, [1.0, 2.0, 3.0, 11.0, 12.0]), 5e6)
    events.insert(5, PauseEvent(repeat=0, pause_s=3.0, resume_s=10.0, reading=reading(3e6)))
    found = figures(events)
    assert (found.ttft_s, found.tpot_s, found.throughput_tokens_per_s) == (1.0, 1.0, 1.0)
    step = 1_000_010
    contexts = [6, 7, 8, 9]  # each reads itself and writes one position
    floors = [(step + 100 * (c + 1)) / rate for c, rate in zip(contexts, [2e6, 2e6, 4e6, 4e6], strict=True)]
    assert found.util_frac == pytest.approx(sum(floors) / 4)
    assert found.roof_read_bytes_per_s == pytest.approx(sum(step + 100 * (c + 1) for c in contexts) / sum(floors))
    roof = find_roof(events)
    assert roof.probe_read_bytes_per_s == pytest.approx(3e6)
    assert roof.uncertainty_frac == pytest.approx((2 / 4 + 2 / 8) / 2)


def test_uncertainty_is_at_least_three_per_cent() -> None:
    assert find_roof(around(0, 1e6, [], 1e6)).uncertainty_frac == 0.03


def test_a_kernel_that_outruns_the_probe_raises_the_roof_by_their_ratio() -> None:
    """Measured while the machine was twice as slow: the ratio counts, not the rate."""
    reads = [
        KernelReadEvent(kernel="gemv", read_bytes=1000, calls_s=(1000 / 0.55e6,), reading=reading(0.5e6))
        for _ in range(3)
    ]
    slow = [KernelReadEvent(kernel="other", read_bytes=1000, calls_s=(1000 / 0.4e6,), reading=reading(0.5e6))]
    measured = around(0, 1e6, request(0, 0.0, [1.0, 2.0]), 1e6)
    roof = find_roof([*reads, *slow, *measured])
    assert figures([*reads, *slow, *measured]).roof_read_bytes_per_s == pytest.approx(1.1e6)
    assert roof.probe_read_bytes_per_s == pytest.approx(1e6)
    assert roof.source == "kernel gemv, 1.100 x the probe beside it"
    lucky = KernelReadEvent(kernel="gemv", read_bytes=1000, calls_s=(1e-4,), reading=reading(0.5e6))
    assert figures([*reads, lucky, *measured]).roof_read_bytes_per_s == pytest.approx(1.1e6)


def test_the_noise_of_the_kernels_ratio_widens_the_interval() -> None:
    """Repeats that agree to the last digit: what is left is the ratio's. Of nine trials, second to second last."""
    trials = (0.5, 1.05, 1.06, 1.08, 1.10, 1.12, 1.14, 1.20, 9.9)
    reads = [
        KernelReadEvent(kernel="gemv", read_bytes=1000, calls_s=(1000 / (0.5e6 * ratio),), reading=reading(0.5e6))
        for ratio in trials
    ]
    repeats = [around(i, 1e6, request(i, 10.0 * i, [10.0 * i + 1, 10.0 * i + 3]), 1e6) for i in range(3)]
    events = [*reads, *repeats[0], *repeats[1], *repeats[2]]
    util, interval, method = utilization(finished_repeats(events), TRAFFIC, find_roof(events))
    assert interval is not None
    assert interval[1] / interval[0] == pytest.approx(1.20 / 1.05)
    assert math.sqrt(interval[0] * interval[1]) == pytest.approx(util)
    assert method == "t over 3 repeats, and of the kernel's ratio, 6.7 %"
    slower = [event.model_copy(update={"read_bytes": 100}) for event in reads]
    _, interval, method = utilization(finished_repeats(events), TRAFFIC, find_roof([*slower, *events[9:]]))
    assert method == "t over 3 repeats", "a kernel that did not raise the roof adds no noise to it"


def kernel_trials(*ratios: float) -> list[Event]:
    return [
        KernelReadEvent(kernel="gemv", read_bytes=1000, calls_s=(1000 / (0.5e6 * ratio),), reading=reading(0.5e6))
        for ratio in ratios
    ]


def test_of_a_ratio_around_one_only_what_is_above_it_counts() -> None:
    """The interval 0.96 to 1.04 of a ratio is 1 to 1.04 of the larger of kernel and probe."""
    roof = find_roof([*kernel_trials(0.9, 0.96, 0.97, 0.98, 0.99, 1.0, 1.01, 1.04, 1.1), *around(0, 1e6, [], 1e6)])
    assert (roof.kernel_ratio, roof.source) == (1.0, "probe")
    assert roof.kernel_half_width == pytest.approx(math.log(1.04) / 2)


def test_a_single_repeats_interval_has_the_ratios_noise_too() -> None:
    events = [*kernel_trials(1.05, 1.1, 1.15), *around(0, 1e6, request(0, 0.0, [1.0, 3.0]), 1e6)]
    _, interval, method = utilization(finished_repeats(events), TRAFFIC, find_roof(events))
    assert interval is not None
    assert math.log(interval[1] / interval[0]) / 2 == pytest.approx(math.hypot(0.03, math.log(1.15 / 1.05) / 2))
    assert method == "the roof's uncertainty; one repeat, and of the kernel's ratio, 4.5 %"


def test_the_interval_stands_around_the_utilization() -> None:
    """One long repeat among short ones: the ratio of sums is the long one's, and so is the middle of the interval."""
    long = request(0, 0.0, [1.0 + i for i in range(400)])
    short = [around(i, 1e6, request(i, 0.0, [1.0, 4.0]), 1e6) for i in (1, 2, 3)]
    events = [*around(0, 1e6, long, 1e6), *short[0], *short[1], *short[2]]
    util, interval, _ = utilization(finished_repeats(events), TRAFFIC, find_roof(events))
    assert interval is not None
    assert interval[0] < util < interval[1]


def test_a_pause_after_the_last_token_weighs_nothing() -> None:
    """Its readings agree, and no step stands between them."""
    events = around(0, 1e6, request(0, 0.0, [1.0, 2.0, 3.0]), 1.5e6)
    without = find_roof(events)
    events.insert(-2, PauseEvent(repeat=0, pause_s=3.0, resume_s=4.0, reading=reading(1.5e6)))
    assert find_roof(events).uncertainty_frac == pytest.approx(without.uncertainty_frac)
    assert find_roof(events).probe_read_bytes_per_s == pytest.approx(without.probe_read_bytes_per_s)


def test_a_slower_kernel_does_not_lower_the_roof() -> None:
    slow = KernelReadEvent(kernel="gemv", read_bytes=1000, calls_s=(1000 / 0.4e6,), reading=reading(0.5e6))
    measured = around(0, 1e6, request(0, 0.0, [1.0, 2.0]), 1e6)
    assert figures([slow, *measured]).roof_read_bytes_per_s == pytest.approx(1e6)


def test_waiting_threads_and_stolen_cpus_add_up() -> None:
    def waited(queued_s: float | None, others_s: float | None, stolen_s: float | None) -> ContentionEvent:
        wait = CpuWait(queued_s=queued_s, others_s=others_s, stolen_s=stolen_s)
        return ContentionEvent(repeat=0, wall_s=10.0, wait=wait)

    assert cpu_wait_frac([waited(1.0, 4.0, 0.5), waited(0.0, 0.0, None)]) == pytest.approx(1.5 / 20)
    assert cpu_wait_frac([waited(3.0, 0.0, 0.0)]) == 0.0, "our own threads waited for each other"
    assert cpu_wait_frac([waited(None, 1.0, 1.0)]) is None
    assert cpu_wait_frac([]) is None


def test_an_unfinished_repeat_is_no_figure() -> None:
    events = [*request(0, 0.0, [1.0, 2.0]), SendEvent(repeat=1, time_s=3.0, num_prompt_tokens=5)]
    assert [repeat.send.repeat for repeat in finished_repeats(events)] == [0]


def test_a_repeat_without_a_reading_after_it_has_no_roof() -> None:
    events = around(0, 1e6, request(0, 0.0, [1.0, 2.0]), 1e6)[:-1]
    assert find_roof(events).stretches == {}
    assert figures(events).util_frac is None


def test_rates_are_those_of_the_median_pass_and_call() -> None:
    """One lucky pass is no roof: the caches may have served it."""
    probe = ProbeReading(pass_bytes=1000, passes_s=(1.0, 2.0, 4.0), variant="x")
    assert reading_rate(probe) == 500.0
    kernel = KernelReadEvent(kernel="gemv", read_bytes=1000, calls_s=(0.1, 1.0, 4.0), reading=probe)
    assert find_roof([kernel]).kernel_ratio == pytest.approx(2.0)


def test_readings_without_a_finished_repeat_still_tell_the_probes_rate() -> None:
    events = around(0, 1e6, request(0, 0.0, [1.0, 2.0])[:-1], 3e6)
    assert find_roof(events).probe_read_bytes_per_s == pytest.approx(2e6)
