"""The split of a decode step by the context: scripted truth comes back, and what can't carry it says why."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_sweeps import ALTERNATING, NO_CACHE, swept, written

from harness.models import resolve_model
from harness.repeats import finished_repeats
from harness.roof import find_roof
from harness.specs.event import ChunkEvent, EndEvent, Event, ProbeEvent, SendEvent
from harness.specs.probe import ProbeReading
from harness.specs.step import DecodeTraffic
from harness.specs.sweep_report import Split
from harness.split import LEFT_OUT_STEPS, split_paths
from harness.traffic import decode_traffic

CONTEXTS = [512, 2048, 8192]
TRUTH = {"util_frac": 0.8, "kv_util_frac": 0.4}
ROOF = 1e9
TRAFFIC = DecodeTraffic(
    tensors_source="config", weight_read_bytes=1_000_000, embedding_row_bytes=10, kv_bytes_per_context_token=1000,
    resident_weight_bytes=1_000_000, linear_flop=1_000_000, attention_flop_per_context_token=50,
)  # fmt: skip


def split(tmp_path: Path, contexts: Sequence[int] = CONTEXTS, **given: Any) -> Split:
    _, _, report = swept(tmp_path, "context", list(contexts), **{**TRUTH, **given})
    assert report.split is not None, report.split_reason
    return report.split


def reason(tmp_path: Path, contexts: Sequence[int] = CONTEXTS, **given: Any) -> str:
    _, _, report = swept(tmp_path, "context", list(contexts), **{**TRUTH, **given})
    assert report.split is None
    assert report.split_reason is not None
    return report.split_reason


def request(
    repeat: int, context: int, traffic: DecodeTraffic = TRAFFIC, num_steps: int = 10, slow_first_s: float = 0.0,
    linear: float = 0.8, attention: float = 0.4, batch: int = 1,
) -> list[Event]:  # fmt: skip
    """One request by hand on a steady roof, at these utilizations of its two paths."""
    now_s = 100.0 * repeat
    reading = ProbeReading(pass_bytes=1000, passes_s=(1000 / ROOF,), variant="x")
    tokens = (7,) * batch
    events: list[Event] = [
        ProbeEvent(repeat=repeat, place="before", reading=reading),
        SendEvent(repeat=repeat, time_s=now_s, num_prompt_tokens=context, batch=batch, prompt_computed=False),
        ChunkEvent(repeat=repeat, time_s=now_s + 1.0, token_ids=tokens),
    ]
    now_s += 1.0
    for step in range(num_steps):
        cache = batch * (traffic.cache_bytes(context + 1 + step) + traffic.kv_bytes_per_context_token)
        other = traffic.step_bytes(context + 1 + step, batch) - cache
        now_s += cache / ROOF / attention + other / ROOF / linear + (slow_first_s if step < 2 else 0.0)
        events.append(ChunkEvent(repeat=repeat, time_s=now_s, token_ids=tokens))
    return [
        *events,
        EndEvent(repeat=repeat, time_s=now_s),
        ProbeEvent(repeat=repeat, place="after", reading=reading),
    ]


def by_hand(events: list[Event], traffic: DecodeTraffic = TRAFFIC) -> Split:
    found, why = split_paths(finished_repeats(events), traffic, find_roof(events))
    assert found is not None, why
    return found


def requests(contexts: Sequence[int] = CONTEXTS, times: int = 2, **given: Any) -> list[Event]:
    return [event for i, context in enumerate([*contexts] * times) for event in request(i, context, **given)]


def test_both_paths_come_back_exactly_without_noise() -> None:
    found = by_hand(requests())
    assert found.linear_util_frac == pytest.approx(0.8)
    assert found.attention_util_frac == pytest.approx(0.4)
    assert found.num_requests == 6
    assert found.residual_frac < 1e-9
    assert found.largest_cache_frac == pytest.approx(8203 * 1000 / (1_000_010 + 8203 * 1000)), "8,202 read, one written"


def test_a_batch_has_its_own_bytes() -> None:
    found = by_hand(requests(batch=4))
    assert (found.linear_util_frac, found.attention_util_frac) == pytest.approx((0.8, 0.4))


@pytest.mark.parametrize("slow_s", [0.0, 5.0])
def test_the_first_steps_are_left_out(slow_s: float) -> None:
    """A prompt leaves caches as it will: two steps of 5 s among milliseconds change nothing."""
    found = by_hand(requests(slow_first_s=slow_s))
    assert (found.linear_util_frac, found.attention_util_frac) == pytest.approx((0.8, 0.4))


def test_a_scripted_machines_paths_come_back(tmp_path: Path) -> None:
    found = split(tmp_path)
    assert found.linear_util_frac == pytest.approx(0.8, rel=1e-6)
    assert found.attention_util_frac == pytest.approx(0.4, rel=1e-6)
    assert found.num_requests == 9


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_noise_the_truth_lies_in_both_intervals(tmp_path: Path, seed: int) -> None:
    noise = {"step_noise_frac": 0.03, "probe_noise_frac": 0.01, "repeat_noise_frac": 0.01, "seed": seed}
    found = split(tmp_path, workload={"repeats": 5}, **noise)
    assert found.linear_interval_frac[0] < 0.8 < found.linear_interval_frac[1]
    assert found.attention_interval_frac[0] < 0.4 < found.attention_interval_frac[1]
    assert found.linear_util_frac == pytest.approx(0.8, rel=0.06)
    assert found.attention_util_frac == pytest.approx(0.4, rel=0.06)
    assert 0.002 < found.residual_frac < 0.03


@pytest.mark.parametrize("drift", [-0.4, 0.6])
def test_a_bandwidth_that_drifts_changes_neither_path(tmp_path: Path, drift: float) -> None:
    """Each stretch of steps is held against the readings around it."""
    found = split(tmp_path, bandwidth_drift_frac=drift, every_s=0.5)
    assert found.linear_util_frac == pytest.approx(0.8, rel=0.01)
    assert found.attention_util_frac == pytest.approx(0.4, rel=0.01)


def test_time_between_kernels_is_the_linear_paths(tmp_path: Path) -> None:
    """It does not grow with the context: 10 ms beside the weights' own time."""
    found = split(tmp_path, gap_s=0.01)
    other_s = (1_192_099_840 + 2048) / 25e9
    assert found.linear_util_frac == pytest.approx(other_s / (other_s / 0.8 + 0.01), rel=1e-6)
    assert found.attention_util_frac == pytest.approx(0.4, rel=1e-6)


def test_windows_that_stop_growing_are_counted_so(tmp_path: Path) -> None:
    """Half of the layers see 1,000 positions of up to 8,192."""
    found = split(tmp_path, model=written(tmp_path, ALTERNATING))
    assert found.linear_util_frac == pytest.approx(0.8, rel=1e-6)
    assert found.attention_util_frac == pytest.approx(0.4, rel=1e-6)


def test_a_hybrids_state_is_the_linear_paths_and_its_cache_the_attention_paths(tmp_path: Path) -> None:
    found = split(tmp_path, [1024, 4096, 16_384], model="qwen3.5-1b-scaled", workload={"repeats": 2})
    assert found.linear_util_frac == pytest.approx(0.8, rel=1e-6)
    assert found.attention_util_frac == pytest.approx(0.4, rel=1e-6)
    model = resolve_model("qwen3.5-1b-scaled")
    traffic = decode_traffic(model.spec, model.tensors, model.tensors_source)
    last = 16_384 + 39
    cache = (last + 1) * traffic.kv_bytes_per_context_token
    assert found.largest_cache_frac == pytest.approx(cache / traffic.step_bytes(last))


@pytest.mark.parametrize(
    ("contexts", "words"),
    [
        ([512, 8192], "2 starting contexts, 512 to 8192: at least 3 over 8 times"),
        ([512, 1024, 4095], "3 starting contexts, 512 to 4095: at least 3 over 8 times"),
    ],
)
def test_few_or_near_contexts_are_refused(tmp_path: Path, contexts: list[int], words: str) -> None:
    assert reason(tmp_path, contexts).startswith(words)
    assert split(tmp_path, [512, 1024, 4096]).num_requests == 9, "exactly three over exactly eight times"


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    words = reason(tmp_path, workload={"output_tokens": 1 + LEFT_OUT_STEPS})
    assert words == "2 decode steps are left out of each request: raise workload.output_tokens"
    assert split(tmp_path, workload={"output_tokens": 2 + LEFT_OUT_STEPS}).num_requests == 9


def test_without_readings_there_is_no_split() -> None:
    events = [event for event in requests() if not isinstance(event, ProbeEvent)]
    found, why = split_paths(finished_repeats(events), TRAFFIC, find_roof(events))
    assert found is None
    assert why is not None and why.startswith("too few requests with readings of the roof")


def test_two_requests_with_readings_are_too_few() -> None:
    events = [event for event in requests(times=1) if not (isinstance(event, ProbeEvent) and event.repeat == 1)]
    found, why = split_paths(finished_repeats(events), TRAFFIC, find_roof(events))
    assert found is None
    assert why is not None and why.startswith("too few requests with readings of the roof")


def test_no_finished_request_is_no_split() -> None:
    found, why = split_paths([], TRAFFIC, find_roof([]))
    assert found is None
    assert why == "no request came to its end"


def test_a_model_without_a_cache_has_no_attention_path(tmp_path: Path) -> None:
    assert reason(tmp_path, model=written(tmp_path, NO_CACHE)) == "no layer keeps a cache that grows with the context"


def test_a_cache_too_small_to_be_seen_is_refused(tmp_path: Path) -> None:
    """64 positions are 0.6 per cent of the bytes: under noise of a per cent their path may take any time, or none."""
    noise = {"step_noise_frac": 0.02, "repeat_noise_frac": 0.01}
    words = reason(tmp_path, [8, 16, 64], **noise)
    assert words.startswith("the attention path's time is lost in noise: ")
    assert words.endswith("sweep to longer contexts, or raise workload.repeats")


def uneven(noise: float) -> list[Event]:
    """Requests too fast and too slow in turn."""
    factors = [1 + noise, 1 - noise]
    paths = [{"linear": 0.8 * factor, "attention": 0.8 * factor} for factor in factors]
    return [e for i, context in enumerate([*CONTEXTS] * 4) for e in request(i, context, **paths[i % 2])]


def test_noise_widens_the_intervals_and_is_no_reason_to_refuse() -> None:
    """A refusal of wide ones would leave those that are narrow by luck, and they would miss the truth too often."""
    widths = []
    for noise in (0.05, 0.2):
        found = by_hand(uneven(noise))
        for low, high in (found.linear_interval_frac, found.attention_interval_frac):
            assert low < 0.8 < high
        widths.append(found.attention_interval_frac[1] - found.attention_interval_frac[0])
    assert widths[1] > 3 * widths[0] > 0.1


def test_the_noise_of_the_kernels_ratio_widens_both(tmp_path: Path) -> None:
    """All requests share it: more of them do not average it out."""
    facts, events, report = swept(tmp_path, "context", CONTEXTS, step_noise_frac=0.01, **TRUTH)
    repeats, roof = finished_repeats(events), find_roof(events)
    wide, _ = split_paths(repeats, facts.traffic, replace(roof, kernel_half_width=0.1))
    assert wide is not None and report.split is not None
    for low, high in (wide.linear_interval_frac, wide.attention_interval_frac):
        assert high / low > 1.2
    assert wide.linear_util_frac == report.split.linear_util_frac


def test_the_split_of_the_record_is_that_of_the_samples(tmp_path: Path) -> None:
    facts, events, report = swept(tmp_path, "context", CONTEXTS, step_noise_frac=0.01, **TRUTH)
    assert split_paths(finished_repeats(events), facts.traffic, find_roof(events)) == (report.split, None)
