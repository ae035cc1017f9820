"""`harness profile`: what it prints, its exit codes, and what it does to a run."""

from pathlib import Path
from typing import Any

import pytest
from command import harness, json_of
from trace_files import STATISTICS, Event, call, hipprof_trace, kernel, mark, op, save, torch_trace

from harness.bench import run_bench
from harness.records import SAMPLES, load_bench, load_events, write_record
from harness.report.runs import recompute_run
from harness.specs.event import TraceEvent
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig

BANDWIDTH = 25e9


def made(tmp_path: Path, **changes: Any) -> tuple[Path, RunRecord]:
    """A run that says nothing of its cause: qwen3-0.6b's step is 1.19 GB of weights and 4.6 MB of cache, 48 ms at 25
    GB/s, and took twice that."""
    config = {
        "name": "t", "model": "qwen3-0.6b", "workload": {"input_tokens": 8, "output_tokens": 65, "repeats": 2},
        "engine": {"kind": "scripted", "util_frac": 0.5, "bandwidth_bytes_per_s": BANDWIDTH, "explains": False},
        **changes,
    }  # fmt: skip
    folder, record, _ = run_bench(RunConfig.model_validate(config), tmp_path / "runs", lambda line: None)
    return folder, record


def steps(num: int, linear_us: float = 50e3, gap_us: float = 40e3, marked: bool = True) -> list[Event]:
    """Steps of products, a millisecond of attention and a pause in which the host waits."""
    events, at = [], 0.0
    for number in range(num):
        begin = at
        events.append(call("cudaLaunchKernel", at, 1.0, 2 * number))
        events.append(kernel("gemv_rows<bf16>", at, linear_us, 2 * number))
        events.append(kernel("attend_split<bf16>", at + linear_us, 1e3))
        at += linear_us + 1e3
        events.append(call("cudaStreamSynchronize", at, gap_us, 2 * number + 1))
        events += [mark("decode_step", begin, at - begin)] * marked
        at += gap_us
    return events


def test_it_prints_what_a_person_needs(tmp_path: Path) -> None:
    trace = save(tmp_path / "t.json.gz", torch_trace(steps(3, gap_us=60e3)))
    text = harness("profile", trace).stdout
    for shown in (
        "outside-kernels",
        "wall a step",
        "111.000 ms",
        "cudaStreamSynchronize",
        "linear",
        "what if",
        "no gaps",
    ):
        assert shown in text, shown
    rows = harness("profile", trace, "--format", "csv").stdout.splitlines()
    assert rows[0].startswith("kernel_class,num_calls,time_s")
    assert rows[1].startswith("linear,1.0,")
    assert "| linear" in harness("profile", trace, "--format", "md").stdout


def test_json_has_every_figure(tmp_path: Path) -> None:
    row = json_of("profile", save(tmp_path / "t.json", torch_trace(steps(3))))
    assert (row["num_steps"], row["per"], row["run"]) == (2, "step", None)
    assert row["gaps_s"] == pytest.approx(0.04, rel=1e-6)
    assert [part["spanned_by"] for part in row["gaps"]] == ["synchronize"]


@pytest.mark.parametrize("content", [hipprof_trace(), STATISTICS], ids=["json", "csv"])
def test_hipprofs_files(tmp_path: Path, content: Any) -> None:
    trace = save(tmp_path / "t", content)
    assert "GPU 3" in harness("profile", trace).stdout or "no timeline" in harness("profile", trace).stdout
    assert json_of("profile", trace, "--steps", 5)["num_steps"] == 5


def test_incomplete_ends_with_4(tmp_path: Path) -> None:
    trace = save(tmp_path / "t.json", torch_trace([call("hipLaunchKernel", 0.0, 1.0, 1)], ["AMD X"]))
    text = harness("profile", trace, code=4).stdout
    assert "incomplete: no kernels of AMD X in it, while the host shows 1 launches" in text
    assert "idle" not in text


@pytest.mark.parametrize("content", ["", "{", "[]", "a,b\n", '{"traceEvents": []}'])
def test_what_is_no_trace_is_explained(tmp_path: Path, content: str) -> None:
    result = harness("profile", save(tmp_path / "t", content), code=2)
    assert result.stderr.count("\n") == 2
    assert "mend:" in result.stderr
    harness("profile", tmp_path / "absent", code=2)
    harness("profile", tmp_path / "t", "--steps", 0, code=2)


def test_a_trace_completes_its_run(tmp_path: Path) -> None:
    """Products take 50 ms of 47.7, attention 1 of 0.2; 40 ms of the 91 are gaps: nearly all of what is lost."""
    folder, before = made(tmp_path)
    assert before.analysis is not None
    assert (before.analysis.cause, before.analysis.timeline_gaps_s) == ("unknown", None)
    trace = save(tmp_path / "t.json", torch_trace(steps(3)))
    row = json_of("profile", trace, "--run", before.run_id, "--runs-dir", tmp_path / "runs")
    linear = next(part for part in row["classes"] if part["kernel_class"] == "linear")
    assert linear["moved_bytes"] == 1_192_099_840
    assert linear["roof_frac"] == pytest.approx(1_192_099_840 / BANDWIDTH / 0.05, rel=1e-3)
    assert (linear["bound"], row["mean_context"]) == ("memory", 40)
    assert row["run"]["cause"] == row["cause"] == "outside-kernels"
    after = load_bench(folder)
    assert after.analysis is not None
    assert after.analysis.timeline_gaps_s == row["run"]["timeline_gaps_s"] == pytest.approx(0.04, rel=1e-6)
    assert after.analysis.cause == "outside-kernels"
    assert after.analysis.outside_kernels_frac == pytest.approx(40 / 91, rel=1e-6)
    assert after.analysis.util_frac == before.analysis.util_frac
    event = load_events(folder)[-1]
    assert isinstance(event, TraceEvent)
    assert (event.trace, event.steps_source, event.evidence.num_steps) == ("t.json", "decode_step", 2)
    assert recompute_run(folder) == after, "recomputing finds the trace again"
    assert "run's cause" in harness("profile", trace, "--run", folder).stdout


def test_a_later_trace_replaces_an_earlier(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    for linear_us, gap_us, cause in ((50e3, 40e3, "outside-kernels"), (90e3, 1e3, "linear-path")):
        trace = save(tmp_path / "t.json", torch_trace(steps(3, linear_us, gap_us)))
        assert json_of("profile", trace, "--run", folder)["run"]["cause"] == cause


def test_steps_that_nothing_tells_are_asked_for(tmp_path: Path) -> None:
    folder, before = made(tmp_path)
    trace = save(tmp_path / "t.json", torch_trace(steps(4, marked=False)))
    samples = (folder / SAMPLES).read_bytes()
    assert "--steps N" in harness("profile", trace, "--run", folder, code=2).stderr
    assert (folder / SAMPLES).read_bytes() == samples
    assert load_bench(folder) == before
    row = json_of("profile", trace, "--run", folder, "--steps", 4)
    assert row["run"]["timeline_gaps_s"] == pytest.approx(0.03, rel=1e-6), "three pauses in four steps"


@pytest.mark.parametrize(
    ("events", "devices", "complaint"),
    [
        (steps(3, 1e3, 1e3), [], "another model"),
        ([op("aten::mm", 0.0, 9.0)], [], "a trace of CPU"),
        (steps(3), ["NVIDIA Y"], "a trace of NVIDIA Y"),
    ],
)
def test_a_trace_of_something_else_is_refused(
    tmp_path: Path, events: list[Event], devices: list[str], complaint: str
) -> None:
    folder, before = made(tmp_path)
    assert before.device is not None
    card = before.device.model_copy(update={"kind": "cuda", "name": "NVIDIA X"})
    write_record(folder, before.model_copy(update={"device": card}))
    trace = save(tmp_path / "t.json", torch_trace(events, devices))
    samples = (folder / SAMPLES).read_bytes()
    assert complaint in harness("profile", trace, "--run", folder, code=2).stderr
    assert (folder / SAMPLES).read_bytes() == samples
    json_of("profile", save(tmp_path / "t.json", torch_trace(steps(3), ["NVIDIA X"])), "--run", folder)


@pytest.mark.parametrize("kind", ["scripted", "unknown"])
def test_a_run_that_does_not_know_its_device_takes_any(tmp_path: Path, kind: str) -> None:
    folder, before = made(tmp_path)
    assert before.device is not None
    server = before.device.model_copy(update={"kind": kind, "name": "http://a-server:8000"})
    write_record(folder, before.model_copy(update={"device": server}))
    trace = save(tmp_path / "t.json", torch_trace(steps(3), ["NVIDIA X"]))
    assert json_of("profile", trace, "--run", folder)["run"]["timeline_gaps_s"] == pytest.approx(0.04, rel=1e-6)


def test_a_gpus_trace_is_not_of_a_run_on_a_cpu(tmp_path: Path) -> None:
    folder, before = made(tmp_path)
    assert before.device is not None
    cpu = before.device.model_copy(update={"kind": "cpu", "name": "a CPU"})
    write_record(folder, before.model_copy(update={"device": cpu}))
    trace = save(tmp_path / "t.json", torch_trace(steps(3)))
    assert "ran on a CPU" in harness("profile", trace, "--run", folder, code=2).stderr


def test_runs_that_cant_be_completed_are_refused(tmp_path: Path) -> None:
    trace = save(tmp_path / "t.json", torch_trace(steps(3)))
    folder, _ = made(tmp_path, sweep={"over": "context", "values": [8, 64, 128]})
    assert "a sweep" in harness("profile", trace, "--run", folder, code=2).stderr
    folder, record = made(tmp_path)
    write_record(folder, record.model_copy(update={"status": "interrupted"}))
    assert "interrupted" in harness("profile", trace, "--run", folder, code=2).stderr


def test_what_has_no_gaps_to_tell_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    folder, before = made(tmp_path)
    samples = (folder / SAMPLES).read_bytes()
    row = json_of("profile", save(tmp_path / "t.csv", STATISTICS), "--run", folder, "--steps", 1)
    assert (row["run"], row["classes"][0]["moved_bytes"]) == (None, 1_192_099_840)
    assert f"it can't complete {before.run_id}, which stays as it is: sums" in row["notes"][-1]
    lost = save(tmp_path / "t.json", torch_trace([call("cudaLaunchKernel", 0.0, 1.0, 1)]))
    assert "stays as it is: it is incomplete" in json_of("profile", lost, "--run", folder, code=4)["notes"][-1]
    assert (folder / SAMPLES).read_bytes() == samples
    assert load_bench(folder) == before


def test_steps_much_slower_than_the_runs_are_told_of(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    trace = save(tmp_path / "t.json", torch_trace(steps(3, 300e3)))
    notes = json_of("profile", trace, "--run", folder)["notes"]
    assert any("times the run's TPOT" in note for note in notes)


def test_two_long_names_stay_two() -> None:
    from harness.cli.profile import NAME_WIDTH, short

    names = {short("x" * 60 + end, NAME_WIDTH) for end in "AB"}
    assert len(names) == 2 and {len(name) for name in names} == {NAME_WIDTH}


def test_kernels_of_no_class_beyond_the_largest_are_counted(tmp_path: Path) -> None:
    events = [kernel(f"mystery_{n}", 100.0 * n, 90.0 - n) for n in range(9)]
    trace = save(tmp_path / "t.json", torch_trace(events))
    text = harness("profile", trace).stdout
    assert "mystery_4" in text and "mystery_5" not in text.partition("kernels of no known class")[2]
    assert "and 4 more (--format json lists them)" in text
    assert len(json_of("profile", trace)["other_kernels"]) == 9


def prompt(begin: int, end: int) -> list[Event]:
    """Products of 20 ms and attention of 5."""
    return [
        mark(f"prefill {begin}-{end}", 0.0, 25e3), call("cudaLaunchKernel", 0.0, 1.0),
        kernel("gemm", 0.0, 20e3), kernel("flash_fwd", 20e3, 5e3),
    ]  # fmt: skip


def test_a_prompts_trace_is_explained_and_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    """Eight positions of qwen3-0.6b: 440 M multiply-adds a position in its layers, 156 M of the head for the last."""
    folder, before = made(tmp_path)
    samples = (folder / SAMPLES).read_bytes()
    trace = save(tmp_path / "t.json", torch_trace(prompt(0, 8)))
    row = json_of("profile", trace, "--run", folder)
    linear = row["classes"][0]
    assert (row["per"], row["positions"], row["mean_context"], row["run"]) == ("prompt", [0, 8], 4, None)
    assert linear["flop"] == 2 * (8 * 440_401_920 + 155_582_464)
    assert linear["moved_bytes"] == 1_192_099_840
    assert "which stays as it is: a run's verdict" in row["notes"][-1]
    text = harness("profile", trace, "--run", folder).stdout
    assert "positions 0 to 8, the last not among them" in text and "wall a prompt" in text
    half = json_of("profile", save(tmp_path / "h.json", torch_trace(prompt(0, 4))), "--run", folder)
    assert half["classes"][0]["flop"] == 2 * 4 * 440_401_920, "the head comes with the last position"
    assert (folder / SAMPLES).read_bytes() == samples
    assert load_bench(folder) == before


def test_a_prompts_trace_has_no_steps_and_no_more_positions_than_the_prompt(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    trace = save(tmp_path / "t.json", torch_trace(prompt(0, 9)))
    assert "leave out --steps" in harness("profile", trace, "--steps", 2, code=2).stderr
    assert "one of 8 tokens" in harness("profile", trace, "--run", folder, code=2).stderr
