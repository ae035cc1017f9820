"""The verdict and its cause, from scripted truth: every band, every refusal, every cause."""

from pathlib import Path
from typing import Any

import pytest

from harness.bench import run_bench
from harness.specs.analysis import Analysis
from harness.specs.engine import Evidence, LaunchClass
from harness.specs.run import RunConfig
from harness.verdict import Measured, find_cause, judge


def scripted(
    tmp_path: Path, workload: dict[str, Any] | None = None, every_s: float | None = 2.0, **engine: Any
) -> Analysis:
    """A whole bench run on a scripted engine."""
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted", **engine}, "probe": {"every_s": every_s},
        "workload": {"input_tokens": 32, "output_tokens": 64, **(workload or {})},
    }  # fmt: skip
    _, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    assert record.analysis is not None
    return record.analysis


@pytest.mark.parametrize(
    ("truth", "verdict"),
    [(0.5, "underfed"), (0.69, "underfed"), (0.71, "approaching"), (0.8, "approaching"), (0.89, "approaching"),
     (0.91, "at-wall"), (0.95, "at-wall"), (1.0, "at-wall"), (1.02, "at-wall"), (1.05, "invalid"), (1.3, "invalid")],
)  # fmt: skip
def test_bands(tmp_path: Path, truth: float, verdict: str) -> None:
    found = scripted(tmp_path, util_frac=truth)
    assert found.verdict == verdict
    assert found.util_frac == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(
    ("truth", "verdict"), [(0.5, "underfed"), (0.8, "approaching"), (0.95, "at-wall"), (1.3, "invalid")]
)
@pytest.mark.parametrize("drift", [-0.3, 0.3])
def test_a_machine_that_drifts_gets_the_same_verdict(tmp_path: Path, truth: float, verdict: str, drift: float) -> None:
    found = scripted(
        tmp_path, util_frac=truth, bandwidth_drift_frac=drift, step_noise_frac=0.02, probe_noise_frac=0.01,
        repeat_noise_frac=0.005,
    )  # fmt: skip
    assert found.verdict == verdict
    assert found.util_frac == pytest.approx(truth, rel=0.03)
    assert found.probe_drift_frac == pytest.approx(drift, rel=0.4), "a part of the drift came before the first repeat"
    assert any("probe moved" in warning for warning in found.warnings)


def test_few_steps_are_invalid(tmp_path: Path) -> None:
    assert scripted(tmp_path, {"output_tokens": 33}).verdict == "approaching"
    found = scripted(tmp_path, {"output_tokens": 32})
    assert (found.verdict, found.util_frac is None) == ("invalid", False)
    assert "31 decode steps" in found.reason


def test_one_output_token_has_no_tpot_and_no_verdict(tmp_path: Path) -> None:
    found = scripted(tmp_path, {"output_tokens": 1})
    assert (found.verdict, found.tpot_s, found.util_frac, found.floor_s) == ("invalid", None, None, None)
    assert found.ttft_s is not None


def test_a_server_that_stops_early_is_invalid(tmp_path: Path) -> None:
    found = scripted(tmp_path, stop_after=50)
    assert found.verdict == "invalid"
    assert "50 tokens instead of the fixed 64" in found.reason
    natural = scripted(tmp_path, {"mode": "natural-stop"}, stop_after=50)
    assert natural.verdict == "approaching"


def test_cache_resident_is_invalid_and_explained(tmp_path: Path) -> None:
    found = scripted(tmp_path, cache_bytes=2 * 1024**3)
    assert found.verdict == "invalid"
    assert "cache-resident" in found.reason


def test_noise_between_repeats_is_unstable(tmp_path: Path) -> None:
    found = scripted(tmp_path, repeat_noise_frac=0.3)
    assert found.verdict == "unstable"
    assert "wider than" in found.reason


def test_a_roof_that_moves_between_two_readings_is_unstable(tmp_path: Path) -> None:
    found = scripted(tmp_path, {"repeats": 2}, every_s=None, util_frac=0.8, bandwidth_drift_frac=-0.8)
    assert found.verdict == "unstable"


def test_pauses_follow_a_memory_that_slows_down_and_recovers_within_a_request(tmp_path: Path) -> None:
    """Six swings of 15 s in requests of 12 s: readings around a request don't say what it had."""
    swings = {"util_frac": 0.95, "bandwidth_wave_frac": 0.3, "bandwidth_wave_s": 15.0}
    workload = {"output_tokens": 256}
    followed = scripted(tmp_path, workload, **swings)
    assert followed.verdict == "at-wall"
    assert followed.util_frac == pytest.approx(0.95, rel=0.03)
    assert scripted(tmp_path, workload, every_s=None, **swings).verdict == "unstable"
    still = scripted(tmp_path, workload, util_frac=0.95)
    alone = scripted(tmp_path, workload, every_s=None, util_frac=0.95)
    for figure in ("tpot_s", "ttft_s", "throughput_tokens_per_s", "itl_p99_s", "util_frac"):
        assert getattr(still, figure) == pytest.approx(getattr(alone, figure)), "a pause is in no figure"


def test_gaps_are_the_cause_when_they_lose_most(tmp_path: Path) -> None:
    found = scripted(tmp_path, util_frac=0.98, gap_s=0.04)
    assert (found.verdict, found.cause) == ("underfed", "outside-kernels")
    assert "graph" in found.next_step


def test_slow_linears_are_the_cause(tmp_path: Path) -> None:
    assert scripted(tmp_path, util_frac=0.6).cause == "linear-path"


def test_a_cache_read_slowly_is_the_cause(tmp_path: Path) -> None:
    """2,000 positions of cache are a sixth of the bytes; read at a fifth of the roof they lose most of the time."""
    found = scripted(tmp_path, {"input_tokens": 2000}, util_frac=0.97, kv_util_frac=0.2)
    assert (found.verdict, found.cause) == ("underfed", "attention-path")


def test_without_evidence_the_cause_is_unknown(tmp_path: Path) -> None:
    assert scripted(tmp_path, util_frac=0.5, explains=False).cause == "unknown"


def test_at_the_wall_the_wall_is_the_cause(tmp_path: Path) -> None:
    found = scripted(tmp_path, util_frac=0.95)
    assert found.cause == "memory-bandwidth"
    assert "fewer bytes" in found.next_step


def measured(**changes: Any) -> Measured:
    base = {
        "util_frac": 0.5, "interval_frac": (0.49, 0.51), "roof_read_bytes_per_s": 1e9, "roof_uncertainty_frac": 0.03,
        "num_decode_steps": 100, "working_set_bytes": 1e9, "cache_bytes": 1000, "probe_buffer_bytes": 4000,
        "evidence": None,
    }  # fmt: skip
    return Measured(**(base | changes))


def test_no_roof_is_no_verdict() -> None:
    assert judge(measured(util_frac=None, roof_read_bytes_per_s=None)).verdict == "no-roof"


def test_a_decode_whose_cores_others_held_is_unstable_however_steady() -> None:
    found = judge(measured(cpu_wait_frac=0.05))
    assert found.verdict == "unstable"
    assert "5.0 %" in found.reason
    assert judge(measured(cpu_wait_frac=0.01)).verdict == "underfed"


def test_a_loss_spread_evenly_has_no_single_cause() -> None:
    parts = tuple(LaunchClass(name=name, step_s=0.4, read_bytes=100_000_000) for name in ("a", "b", "c"))
    cause, why = find_cause(Evidence(num_steps=9, step_s=2.0, outside_kernels_s=0.1, classes=parts), 1e9)
    assert cause == "unknown"
    assert "no single part" in why


def test_a_cause_is_found_within_the_instrumented_pass_alone() -> None:
    """At its own context: linears read 1 GB at 0.85 of the roof, the cache 100 MB at 0.3, whatever the run's mean."""
    parts = (
        LaunchClass(name="linear", step_s=1.0 / 0.85, read_bytes=10**9),
        LaunchClass(name="attention", step_s=0.1 / 0.3, read_bytes=10**8),
    )
    step_s = sum(part.step_s for part in parts)
    cause, _ = find_cause(Evidence(num_steps=16, step_s=step_s, outside_kernels_s=0.0, classes=parts), 1e9)
    assert cause == "attention-path", "0.233 s of 0.410 s lost"


def test_a_probe_that_read_a_cache_is_invalid() -> None:
    found = judge(measured(probe_buffer_bytes=999))
    assert found.verdict == "invalid"
    assert "read no memory" in found.reason


@pytest.mark.parametrize(
    ("util", "verdict"), [(0.6999, "underfed"), (0.7, "approaching"), (0.8999, "approaching"), (0.9, "at-wall")]
)
def test_a_bound_belongs_to_the_band_above_it(util: float, verdict: str) -> None:
    assert judge(measured(util_frac=util)).verdict == verdict


def test_faster_than_memory_can_be_read_is_invalid_whatever_else_is_known() -> None:
    """Traffic of a whole device over the peak of one of its two dies read 303 %."""
    found = judge(measured(util_frac=3.03, cache_bytes=None, probe_buffer_bytes=None))
    assert found.verdict == "invalid"
    assert "3.030 is above 1" in found.reason


def test_a_roof_that_moved_is_unstable_and_the_difference_is_named() -> None:
    found = judge(measured(roof_uncertainty_frac=0.2))
    assert found.verdict == "unstable"
    assert "differ by 40.0 %" in found.reason
    assert judge(measured(roof_uncertainty_frac=0.1)).verdict == "underfed"


def test_ranks_that_wait_for_each_other_are_the_cause() -> None:
    parts = (LaunchClass(name="linear", step_s=1.0, read_bytes=10**9),)
    found = judge(measured(evidence=Evidence(num_steps=9, step_s=2.0, communication_s=1.0, classes=parts)))
    assert found.cause == "communication"
    assert "100.0 % of the loss" in found.reason


def test_an_instrumented_pass_that_lost_nothing_names_no_cause() -> None:
    """It ran on a faster machine than the repeats did: nothing of it says why they were slow."""
    parts = (LaunchClass(name="linear", step_s=0.9, read_bytes=10**9),)
    cause, _ = find_cause(Evidence(num_steps=9, step_s=0.9, outside_kernels_s=0.0, classes=parts), 1e9)
    assert cause == "unknown"
