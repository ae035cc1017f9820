"""The command through typer's runner: outputs, exit codes, and no traceback for any fault of the user's."""

import errno
import json
from pathlib import Path

import pytest
from command import harness, json_of
from typer.testing import CliRunner

from harness.cli.main import app, main
from harness.resources import find_config
from harness.specs.probe import ProbeReport
from harness.units import gb_per_s, ms

RUN = """\
name: t
model: qwen3-0.6b
engine: {kind: scripted, util_frac: 0.8}
workload: {input_tokens: 8, output_tokens: 64}
"""
KEYS = {
    "util_frac", "util_interval_frac", "verdict", "cause", "tpot_s", "ttft_s", "floor_s", "weight_read_bytes",
    "kv_bytes_per_context_token", "state_read_bytes", "state_write_bytes", "roof_read_bytes_per_s",
    "probe_read_bytes_per_s", "mfu_frac", "throughput_tokens_per_s",
}  # fmt: skip
MINIMAL_LIST = {
    "model", "precision", "hardware", "kernels", "batch", "concurrency", "input_tokens", "output_tokens", "step_flop",
    "step_bytes", "bytes_source", "mfu_frac", "achieved_bytes_per_s", "ttft_s", "tpot_s", "throughput_tokens_per_s",
    "timeline_gaps_s",
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS_DIR", str(tmp_path / "runs"))
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_bench_prints_the_verdict_and_where_the_record_is(config: Path) -> None:
    text = harness("bench", config).stdout
    assert "approaching" in text
    assert "linear-path" in text
    assert "scripted-t-" in text


def test_bench_json_has_every_named_key(config: Path) -> None:
    row = json_of("bench", config)
    assert row.keys() >= KEYS | MINIMAL_LIST
    assert row["util_frac"] == pytest.approx(0.8)
    assert row["timeline_gaps_s"] is None
    assert row["bytes_source"] == "logical"
    assert Path(row["record"], "record.json").is_file()


@pytest.mark.parametrize("format", ["md", "csv"])
def test_other_formats_hold_only_the_result(config: Path, format: str) -> None:
    text = harness("bench", config, "--format", format).stdout
    assert text.startswith("| figure" if format == "md" else "run_id,")


def test_invalid_measurement_is_exit_code_4(config: Path) -> None:
    assert json_of("bench", config, "--set", "engine.util_frac=1.3", code=4)["verdict"] == "invalid"
    assert json_of("bench", config, "--set", "engine.repeat_noise_frac=0.4", code=4)["verdict"] == "unstable"


def test_one_output_token(config: Path) -> None:
    row = json_of("bench", config, "--set", "workload.output_tokens=1", code=4)
    assert (row["tpot_s"], row["util_frac"], row["verdict"]) == (None, None, "invalid")


def test_gate_is_exit_code_1_and_the_run_is_kept(config: Path) -> None:
    result = harness("bench", config, "--set", "gate.min_util_frac=0.9", code=1)
    assert "gate: util_frac is 0.8, wanted at least 0.9" in result.stderr
    assert "done" in harness("runs", "list").stdout
    harness("bench", config, "--set", "gate.min_util_frac=0.7")
    harness("bench", config, "--set", "gate.max_tpot_s=0.001", code=1)
    assert (
        "null"
        in harness("bench", config, "--set", "gate.max_tpot_s=9", "--set", "workload.output_tokens=1", code=1).stderr
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "absent.yaml"),
        ("bench", "RUN", "--set", "workload.repeats=zero"),
        ("bench", "RUN", "--set", "workload.output_tokens=0"),
        ("bench", "RUN", "--set", "model=no-such-model"),
        ("bench", "RUN", "--set", "model=/absent/config.json"),
        ("bench", "RUN", "--set", "workload.output_tokens=100000"),
        ("bench", "RUN", "--set", "workload.input_tokens=null", "--set", "workload.prompts=['']"),
        ("runs", "show", "absent"),
        ("plan", "qwen3-0.6b", "--device", "no-such-device"),
        ("plan", "qwen3-0.6b", "--device", "cpu-generic"),
        ("plan", "qwen3-0.6b", "--device", "a100", "--context", "100000000"),
        ("plan", "x" * 300, "--device", "a100"),
        ("plan", "qwen3-0.6b", "--device", "x" * 300),
        ("runs", "show", "x" * 300),
        ("bench", "RUN", "--set", "workload.input_tokens=1000000000"),
        ("bench", "RUN", "--set", "workload.repeats=100000000000"),
        ("bench", "RUN", "--set", "workload.repeats=2001-13-45"),
        ("ab", "linear", "--model", "qwen3-0.6b", "--batch", "999999999999"),
        ("ab", "linear", "--model", "qwen3-0.6b", "--batch", "\u00b2"),
        ("ab", "linear", "--model", "qwen3-0.6b", "--blocks", "2"),
        ("schema", "absent"),
        ("bench",),
        ("nonsense",),
        ("plan", "qwen3-0.6b", "--device", "a100", "--context", "0"),
    ],
)
def test_bad_input_is_exit_code_2(config: Path, arguments: tuple[str, ...]) -> None:
    result = harness(*(config if argument == "RUN" else argument for argument in arguments), code=2)
    assert result.stderr.strip()
    assert result.stdout == ""
    if result.stderr.startswith("error"):
        what, mend = result.stderr.strip().splitlines()
        assert what.startswith("error: ")
        assert mend.startswith("mend:  ")


@pytest.mark.parametrize("value", ["1e300", "1e-300", "true", ".inf", "-1.0", "0"])
def test_what_no_machine_has_is_refused(config: Path, value: str) -> None:
    keys = ["util_frac", "bandwidth_bytes_per_s", "peak_flop_per_s", "kv_util_frac", "probe_frac"]
    if value == "true":
        keys += ["gap_s", "bandwidth_drift_frac", "bandwidth_wave_frac", "step_noise_frac"]
    for key in keys:
        result = harness("bench", config, "--set", f"engine.{key}={value}", code=2)
        assert f"engine.{key}" in result.stderr.replace("scripted.", "")


@pytest.mark.parametrize("value", ["1.0e+24", "1.0e-24"])
def test_the_extremes_that_are_allowed_are_judged(config: Path, value: str) -> None:
    keys = ("util_frac", "bandwidth_bytes_per_s", "peak_flop_per_s", "kv_util_frac", "probe_frac")
    for settings in [[key] for key in keys] + [list(keys)]:
        overrides = [part for key in settings for part in ("--set", f"engine.{key}={value}")]
        result = CliRunner().invoke(app, ["bench", str(config), *overrides, "--format", "json"])
        assert result.exit_code in (0, 4), result.output
        assert json.loads(result.stdout)["verdict"]


def test_debug_shows_the_traceback(config: Path) -> None:
    result = CliRunner().invoke(app, ["--debug", "bench", "absent.yaml"])
    assert result.exception is not None
    assert type(result.exception).__name__ == "ConfigError"


def test_runs_list_show_compare_recompute(config: Path) -> None:
    first = Path(json_of("bench", config)["record"]).name
    second = Path(json_of("bench", config, "--set", "engine.util_frac=0.5")["record"]).name
    rows = json_of("runs", "list")
    assert [(row["run"], row["verdict"]) for row in rows] == [(first, "approaching"), (second, "underfed")]
    assert json_of("runs", "show", second[-8:])["run_id"] == second
    assert "underfed" in harness("runs", "show", second).stdout
    compared = {row["figure"]: row for row in json_of("runs", "compare", first, second)}
    assert compared["config.engine.util_frac"] == {"figure": "config.engine.util_frac", first: 0.8, second: 0.5}
    assert json_of("runs", "recompute", first)["util_frac"] == pytest.approx(0.8)


def test_an_empty_place_says_so(config: Path) -> None:
    result = harness("runs", "list")
    assert result.stdout == ""
    assert "no runs in" in result.stderr
    assert json_of("runs", "list") == []


def test_a_failed_run_is_recorded_with_its_reason(config: Path) -> None:
    harness("bench", config, "--set", "workload.output_tokens=100000", code=2)
    (row,) = json_of("runs", "list")
    assert row["status"] == "failed"
    assert "positions" in row["note"]


def test_plan_has_the_same_byte_keys(config: Path) -> None:
    plan = json_of("plan", "llama-2-70b", "--device", "h100", "--context", "1")
    assert plan["weight_read_bytes"] == 137_429_008_384
    assert plan.keys() >= {
        key for key in KEYS if key.endswith("_bytes") or key in ("floor_s", "kv_bytes_per_context_token")
    }
    run = json_of("bench", config)
    same = json_of("plan", "qwen3-0.6b", "--device", "a100")
    for key in ("weight_read_bytes", "kv_bytes_per_context_token", "state_read_bytes", "state_write_bytes"):
        assert same[key] == run[key]


@pytest.mark.parametrize("name", ["run", "record", "event", "ab-record", "ab-event", "device"])
def test_schemas_describe_their_fields(name: str) -> None:
    text = harness("schema", name).stdout
    assert json.loads(text)
    assert '"description"' in text


def test_devices_doctor_and_version() -> None:
    assert {"a100", "h100", "bw-gfx936"} <= {row["device"] for row in json_of("devices")}
    assert "physical cores" in harness("doctor").stdout
    assert {"compiler", "torch"} <= {row["name"] for row in json_of("doctor")}
    assert harness("--version").stdout.strip()


def test_progress_is_silent_when_stderr_is_no_terminal(config: Path) -> None:
    assert harness("bench", config).stderr == ""


def line_of(text: str, name: str) -> str:
    """What stands beside a name in a table of lines."""
    return next(line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(f"{name} "))


def test_each_line_shows_the_figure_of_its_name(config: Path) -> None:
    row = json_of("bench", config, "--set", "engine.gap_s=0.01", "--set", "engine.bandwidth_drift_frac=-0.2")
    text = harness("runs", "show", row["record"]).stdout
    assert line_of(text, "TPOT").startswith(ms(row["tpot_s"]))
    assert line_of(text, "TTFT").startswith(ms(row["ttft_s"]))
    assert line_of(text, "floor").startswith(ms(row["floor_s"]))
    assert line_of(text, "roof").startswith(gb_per_s(row["roof_read_bytes_per_s"]))
    assert line_of(text, "achieved") == gb_per_s(row["achieved_bytes_per_s"])
    assert "the probe moved" in line_of(text, "warning")
    assert ms(row["tpot_s"]) in harness("runs", "list").stdout


def test_the_answer_is_shown_to_people_and_not_to_programs(config: Path) -> None:
    prompt = ("--set", "workload.input_tokens=null", "--set", "workload.prompts=[one two]")
    assert "what the model wrote (repeat 1) ---\n0 1 2 " in harness("bench", config, *prompt).stdout
    assert json_of("bench", config, *prompt)["verdict"] == "approaching"


def test_an_option_goes_before_the_environment(config: Path, tmp_path: Path) -> None:
    harness("bench", config, "--runs-dir", tmp_path / "other")
    assert json_of("runs", "list") == []
    assert len(json_of("runs", "list", "--runs-dir", tmp_path / "other")) == 1


def test_a_failed_run_is_shown_with_its_reason_and_what_mends_it(config: Path) -> None:
    harness("bench", config, "--set", "workload.output_tokens=100000", code=2)
    text = harness("runs", "show", "scripted-t").stdout
    assert line_of(text, "status") == "failed"
    assert "positions" in line_of(text, "failure")
    assert "lower workload.output_tokens" in line_of(text, "mend")


@pytest.mark.parametrize(("model", "fits"), [("qwen3-0.6b", "yes"), ("llama-2-70b", "NO")])
def test_plan_says_whether_it_fits(model: str, fits: str) -> None:
    assert line_of(harness("plan", model, "--device", "h100").stdout, "fits in memory") == fits


def test_doctor_has_a_line_and_a_row_for_each_thing() -> None:
    assert len(harness("doctor").stdout.splitlines()) == 1
    assert "huge pages" in harness("doctor", "--all").stdout


def test_probe_shows_each_rate_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    report = ProbeReport(
        method="verified-read", variant="x", num_threads=2, buffer_bytes=1 << 30, huge_pages=True,
        read_bytes_per_s=3e9, reading_buffer_bytes=1 << 30, copy_bytes_per_s=4e9, write_bytes_per_s=5e9,
        baseline_read_bytes_per_s=6e9,
    )  # fmt: skip
    asked: list[tuple[str, int | None]] = []
    monkeypatch.setattr(
        "harness.report.probe.probe_this_machine", lambda device, n, tell: asked.append((device, n)) or report
    )
    text = harness("probe", "--threads", "2").stdout
    assert asked == [("auto", 2)]
    names = ("read", "copy", "write", "first probe here")
    assert [line_of(text, name).partition(" ")[0] for name in names] == ["3.00", "4.00", "5.00", "6.00"]


def test_more_threads_than_cores_are_refused() -> None:
    assert "--threads 4096" in harness("probe", "--threads", "4096", code=2).stderr


def test_a_fault_of_the_system_is_not_called_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("harness.cli.main.app", fails)
    with pytest.raises(OSError, match="Input/output"):
        main()


def test_a_quantized_config_without_its_weights_is_refused(tmp_path: Path) -> None:
    """A bf16 count of a 4-bit model would be four times too much."""
    model = json.loads(find_config("models", "qwen3-0.6b", "{name}/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**model, "quantization_config": {"quant_method": "awq"}}))
    result = harness("plan", tmp_path, "--device", "a100", code=2)
    assert "quantization_config is awq" in result.stderr
