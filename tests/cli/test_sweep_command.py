"""`bench --sweep` and what `runs` does with it, through typer's runner: outputs, exit codes, no traceback."""

import csv
import io
import json
from pathlib import Path

import pytest
from command import harness, json_of

from harness.errors import ConfigError
from harness.records import load_record, write_record
from harness.specs.record import RunRecord
from harness.specs.sweep import parse_sweep

RUN = """\
name: t
model: qwen3-0.6b
engine: {kind: scripted, util_frac: 0.8, kv_util_frac: 0.4}
workload: {input_tokens: 8, output_tokens: 40, repeats: 2, warmup_tokens: 1}
"""
CONTEXT, PROMPTS, BATCH = "context=512,2048,8192", "input_tokens=64,256,1024", "batch=1..128"
EACH = {
    CONTEXT: ("context", ["512", "2,048", "8,192"], "split"),
    PROMPTS: ("input_tokens", ["64", "256", "1,024"], "TTFT fit"),
    BATCH: ("batch", ["1", "2", "4", "8", "16", "32", "64", "128"], "knee"),
}
each_sweep = pytest.mark.parametrize("sweep", EACH)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS_DIR", str(tmp_path / "runs"))
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def run_folder(config: Path) -> Path:
    """Of the one run."""
    (folder,) = (config.parent / "runs").iterdir()
    return folder


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.strip()]


@each_sweep
def test_a_table_has_a_row_a_value_and_what_they_show_together(config: Path, sweep: str) -> None:
    over, values, shown = EACH[sweep]
    text = harness("bench", config, "--sweep", sweep).stdout
    words = first_words(text)
    assert text.startswith(f"t over {over}")
    assert words[1] == over
    assert words[2 : 2 + len(values)] == values
    (line,) = [line for line in text.splitlines() if line.startswith(f"{shown} ")]
    assert "none" not in line and "not found" not in line
    assert words[-1] == "record" or "scripted-t-" in text


def test_what_the_values_show_together_in_words(config: Path) -> None:
    text = harness("bench", config, "--sweep", CONTEXT).stdout
    assert "linear path 0.800 [0.800, 0.800], attention path 0.400 [0.400, 0.400]" in text
    assert "none: no prompt was computed: sweep over input_tokens" in text
    text = harness("bench", config, "--sweep", PROMPTS).stdout
    # at half of 1 TFLOP/s: the head once, all layers' products a token, and half of 28 x 4 x 2048 FLOP a square
    assert "0.622 ms + 1762 us n + 229.4 ns n^2; at 1,024 tokens 11.8 %" in " ".join(text.split())
    text = harness("bench", config, "--sweep", BATCH).stdout
    assert "so the walls alone would have it at batch 44" in " ".join(text.split())


@each_sweep
def test_json_is_one_object_with_all_of_it(config: Path, sweep: str) -> None:
    over, values, _ = EACH[sweep]
    found = json_of("bench", config, "--sweep", sweep)
    assert found["over"] == over
    assert [f"{point['value']:,}" for point in found["points"]] == values
    assert {"util_frac", "verdict", "tpot_s", "prefill_verdict"} <= found["points"][0]["analysis"].keys()
    name = {"context": "split", "input_tokens": "ttft_fit", "batch": "knee"}[over]
    assert found[name] is not None and found[f"{name}_reason"] is None
    assert Path(found["record"]) == run_folder(config)


@each_sweep
def test_md_and_csv_hold_only_the_result(config: Path, sweep: str) -> None:
    over, values, shown = EACH[sweep]
    lines = harness("bench", config, "--sweep", sweep, "--format", "md").stdout.splitlines()
    assert lines[0].split()[1] == over
    assert [line.split()[1] for line in lines[2 : 2 + len(values)]] == values
    assert any(line.startswith(f"| {shown} ") for line in lines)
    rows = list(csv.DictReader(io.StringIO(harness("bench", config, "--sweep", sweep, "--format", "csv").stdout)))
    assert [f"{int(row[over]):,}" for row in rows] == values
    assert all(float(row["tpot_s"]) > 0 and row["verdict"] for row in rows)


@pytest.mark.parametrize(
    ("sweep", "reason"),
    [("context=512,1024", "split_reason"), ("input_tokens=64,128", "ttft_fit_reason")],
)
def test_a_sweep_that_does_not_answer_is_exit_code_4_and_says_why(config: Path, sweep: str, reason: str) -> None:
    assert "needed" in json_of("bench", config, "--sweep", sweep, code=4)[reason]
    assert "done" in harness("runs", "list").stdout


def test_a_sweep_over_batches_answers_with_its_points(config: Path) -> None:
    found = json_of("bench", config, "--sweep", "batch=1,2")
    assert (found["knee"], len(found["points"])) == (None, 2)
    assert "still at the memory wall" in found["knee_reason"]


@pytest.mark.parametrize(
    "sweep",
    [
        "nonsense=1,2", "context", "context=", "=1,2", "context=one,two", "context=1;2", "context=1.5,2",
        "context=-1,2", "context=512", "batch=4..4", "context=512,512", "context=0,512", "batch=64..1", "batch=0..8",
        "batch=1...8", "batch=1..", "batch=..8", "batch= 1,2", "batch=1,2,", "context=9999999999,1", "batch=\u00b2,4",
        "Batch=1,2", "batch=1000000000..1",
    ],
)  # fmt: skip
def test_what_is_no_sweep_is_exit_code_2(config: Path, sweep: str) -> None:
    result = harness("bench", config, "--sweep", sweep, code=2)
    what, mend = result.stderr.strip().splitlines()
    assert what.startswith("error: --sweep ")
    assert mend == "mend:  write for example context=512,1024,4096, or batch=1..64 for doublings"
    assert result.stdout == ""
    assert not (config.parent / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "workload.input_tokens=null", "--set", "workload.prompts=[one two]"), "needs workload.input_tokens"),
        (("--set", "gate.min_util_frac=0.5"), "a sweep has no gate"),
        (("--sweep", "context=8,100000"), "40960 positions"),
    ],
)
def test_a_sweep_that_this_run_cannot_make_is_exit_code_2(config: Path, arguments: tuple[str, ...], words: str) -> None:
    result = harness("bench", config, "--sweep", BATCH, *arguments, code=2)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2


def test_more_values_than_a_run_may_have_are_refused(config: Path) -> None:
    result = harness("bench", config, "--sweep", "context=" + ",".join(map(str, range(1, 66))), code=2)
    assert "64" in result.stderr


def test_doublings_end_at_the_last_value() -> None:
    assert parse_sweep("batch=1..64").values == (1, 2, 4, 8, 16, 32, 64)
    assert parse_sweep("batch=3..20").values == (3, 6, 12, 20)
    assert parse_sweep("context=4096,512").values == (4096, 512)
    with pytest.raises(ConfigError, match="two values or more"):
        parse_sweep("batch=7..7")


@each_sweep
def test_show_is_what_bench_showed(config: Path, sweep: str) -> None:
    made = harness("bench", config, "--sweep", sweep).stdout
    shown = harness("runs", "show", "scripted-t").stdout
    over, values, together = EACH[sweep]
    assert first_words(shown)[1 : 2 + len(values)] == [over, *values]
    of_both = [[line for line in text.splitlines() if line.startswith(f"{together} ")] for text in (made, shown)]
    assert of_both[0] == of_both[1] != []
    assert "status" in first_words(shown)
    record = json_of("runs", "show", "scripted-t")
    assert record["sweep"]["over"] == over and record["analysis"] is None


def test_the_list_says_what_a_sweep_goes_over(config: Path) -> None:
    harness("bench", config, "--sweep", CONTEXT)
    (row,) = json_of("runs", "list")
    assert (row["status"], row["note"]) == ("done", "sweep over 3 values of context")
    assert (row["verdict"], row["util_frac"]) == (None, None)
    assert "sweep over 3 values" in " ".join(harness("runs", "list").stdout.split())


@each_sweep
def test_recompute_finds_the_same_again(config: Path, sweep: str) -> None:
    made = json_of("bench", config, "--sweep", sweep)
    folder = run_folder(config)
    before = load_record(folder)
    assert isinstance(before, RunRecord)
    write_record(folder, before.model_copy(update={"sweep": None, "requests": ()}))
    again = json_of("runs", "recompute", "scripted-t")
    assert again == {key: value for key, value in made.items() if key != "record"}
    assert load_record(folder) == before
    assert EACH[sweep][2] in harness("runs", "recompute", "scripted-t").stdout


def killed(folder: Path, num_requests: int) -> None:
    """As a kill leaves it: so many whole requests and the beginning of the next, no figures, nobody who writes."""
    samples = folder / "samples.jsonl"
    lines = samples.read_bytes().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if json.loads(line)["event"] == "end"]
    sends = [i for i, line in enumerate(lines) if json.loads(line)["event"] == "send"]
    kept = lines[: (ends[num_requests - 1] + 1) if num_requests else 0] + lines[sends[num_requests] :][:2]
    samples.write_bytes(b"".join(kept) + b'{"event": "chunk", "rep')
    record = load_record(folder)
    assert isinstance(record, RunRecord)
    write_record(folder, record.model_copy(update={"status": "running", "sweep": None, "requests": ()}))


@each_sweep
def test_a_killed_sweep_keeps_what_it_measured(config: Path, sweep: str) -> None:
    harness("bench", config, "--sweep", sweep)
    folder = run_folder(config)
    killed(folder, 2)
    assert "interrupted" in harness("runs", "list").stdout
    assert "interrupted" in harness("runs", "show", "scripted-t").stdout
    found = json_of("runs", "recompute", "scripted-t")
    assert sum(point["analysis"]["num_repeats"] for point in found["points"]) == 2
    name = {"context": "split", "input_tokens": "ttft_fit", "batch": "knee"}[EACH[sweep][0]]
    assert found[name] is None or name == "knee"
    assert "sweep over 2 values" in json_of("runs", "list")[0]["note"]


@each_sweep
@pytest.mark.parametrize("format", ["table", "md", "csv", "json"])
def test_a_sweep_killed_before_its_first_request_ended_has_no_points(config: Path, sweep: str, format: str) -> None:
    harness("bench", config, "--sweep", sweep)
    killed(run_folder(config), 0)
    text = harness("runs", "recompute", "scripted-t", "--format", format).stdout
    words = "fewer than two batches" if sweep == BATCH else "no request came to its end"
    assert words in text
    harness("runs", "show", "scripted-t", "--format", format)


def test_sweeps_are_compared_value_by_value(config: Path) -> None:
    harness("bench", config, "--sweep", CONTEXT)
    harness("bench", config, "--sweep", "context=512,4096,8192", "--set", "engine.util_frac=0.5")
    a, b = sorted(path.name for path in (config.parent / "runs").iterdir())
    rows = {row["figure"]: row for row in json_of("runs", "compare", a, b)}
    assert rows["context 512: verdict"] == {"figure": "context 512: verdict", a: "approaching", b: "underfed"}
    assert rows["context 8192: util_frac"][a] > rows["context 8192: util_frac"][b]
    assert rows["context 2048: tpot_s"][a] is not None and rows["context 2048: tpot_s"][b] is None
    assert rows["split.linear_util_frac"][a] == pytest.approx(0.8)
    assert rows["split.linear_util_frac"][b] == pytest.approx(0.5)
    assert rows["config.engine.util_frac"] == {"figure": "config.engine.util_frac", a: 0.8, b: 0.5}
    assert "util_frac" not in rows, "a sweep has none of its own"


def test_a_sweep_beside_a_run_of_one_workload_shares_no_figure(config: Path) -> None:
    harness("bench", config, "--sweep", CONTEXT)
    harness("bench", config)
    a, b = sorted(path.name for path in (config.parent / "runs").iterdir())
    rows = {row["figure"]: row for row in json_of("runs", "compare", a, b)}
    assert rows["util_frac"][a] is None and rows["util_frac"][b] is not None
    assert rows["context 512: util_frac"][b] is None and rows["context 512: util_frac"][a] is not None
