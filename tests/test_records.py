"""Run folders survive kills, full disks and read-only places; a record is always whole."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.bench import run_bench
from harness.errors import ConfigError
from harness.records import (
    RECORD,
    SAMPLES,
    RunFolder,
    end_recorded,
    find_run,
    list_runs,
    load_events,
    load_record,
    write_record,
)
from harness.report.runs import comparison_rows, recompute_run, run_rows
from harness.specs.event import EndEvent
from harness.specs.record import SCHEMA_VERSION, RunRecord
from harness.specs.run import RunConfig

CONFIG = RunConfig.model_validate(
    {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted"},
        "workload": {"input_tokens": 8, "output_tokens": 40, "repeats": 3},
    }
)  # fmt: skip


def made(parent: Path, config: RunConfig = CONFIG) -> tuple[Path, RunRecord]:
    folder, record, _ = run_bench(config, parent, lambda line: None)
    return folder, record


def test_a_run_leaves_record_samples_and_log(tmp_path: Path) -> None:
    folder, record = made(tmp_path)
    assert load_record(folder) == record
    assert record.status == "done"
    kinds = Counter(event.event for event in load_events(folder))
    assert kinds == {
        "kernel_read": 15, "peak": 2 * 3, "probe": 2 * 3, "send": 3, "chunk": 3 * 40, "pause": kinds["pause"], "end": 3,
        "evidence": 1,
    }  # fmt: skip
    assert "repeat 3 of 3" in (folder / "log.txt").read_text()
    assert folder.name.split("-")[1:3] == ["scripted", "t"]
    assert not [path for path in folder.iterdir() if path.name not in (RECORD, SAMPLES, "log.txt")]


def test_figures_are_recomputable_from_the_samples(tmp_path: Path) -> None:
    folder, record = made(tmp_path)
    assert recompute_run(folder).analysis == record.analysis
    assert load_record(folder) == record


def test_a_torn_last_line_is_left_out_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    whole = load_events(folder)
    with (folder / SAMPLES).open("ab") as samples:
        samples.write(b'{"event": "end", "rep')
    assert load_events(folder) == whole
    with (folder / SAMPLES).open("ab") as samples:
        samples.write(b"\n")
    with pytest.raises(ConfigError, match=rf"{SAMPLES}:{len(whole) + 1}"):
        load_events(folder)


def test_a_run_in_progress_is_running_and_one_without_a_writer_is_interrupted(tmp_path: Path) -> None:
    _, record = made(tmp_path)
    with RunFolder.create(tmp_path, "cpu", "t") as folder:
        folder.write(record.model_copy(update={"status": "running", "analysis": None}))
        folder.append(EndEvent(repeat=0, time_s=1.0))
        assert load_record(folder.path).status == "running"
        with pytest.raises(ConfigError, match="still being measured"):
            recompute_run(folder.path)
    assert load_record(folder.path).status == "interrupted"


def test_two_runs_of_one_name_in_one_second_do_not_meet(tmp_path: Path) -> None:
    names = {made(tmp_path)[0].name for _ in range(3)}
    assert len(names) == 3


def test_find_run_by_part_and_refuse_what_is_not_one(tmp_path: Path) -> None:
    (folder, _), (other, _) = made(tmp_path), made(tmp_path)
    assert find_run(tmp_path, folder.name[-8:]) == folder
    assert find_run(tmp_path, folder.name) == folder
    assert find_run(Path("/nowhere"), str(other)) == other
    longer = folder.rename(folder.with_name(f"{other.name}0"))
    assert find_run(tmp_path, other.name) == other, "though another's id begins with it"
    assert find_run(tmp_path, longer.name) == longer
    with pytest.raises(ConfigError, match="part of 2 runs"):
        find_run(tmp_path, "scripted")
    with pytest.raises(ConfigError, match="no run"):
        find_run(tmp_path, "absent")


def test_an_unreadable_record_does_not_hide_the_others(tmp_path: Path) -> None:
    (bad, _), (good, _) = made(tmp_path), made(tmp_path)
    (bad / RECORD).write_text("{")
    rows = {row["run"]: row for row in run_rows(tmp_path)}
    assert rows[bad.name]["status"] == "unreadable"
    assert rows[good.name]["status"] == "done"


def test_a_record_of_another_version_is_refused_by_field(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    text = (folder / RECORD).read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 1')
    (folder / RECORD).write_text(text)
    with pytest.raises(ConfigError, match="schema_version"):
        load_record(folder)


def test_comparison_shows_figures_and_what_differs(tmp_path: Path) -> None:
    _, a = made(tmp_path)
    slower = CONFIG.model_copy(update={"engine": CONFIG.engine.model_copy(update={"util_frac": 0.5})})
    _, b = made(tmp_path, slower)
    rows = {row["figure"]: row for row in comparison_rows([a, b])}
    assert rows["verdict"][a.run_id] == "approaching"
    assert rows["verdict"][b.run_id] == "underfed"
    assert rows["config.engine.util_frac"][b.run_id] == 0.5
    assert "config.workload.repeats" not in rows
    later = b.environment.model_copy(update={"utc": "2001-01-01", "load_average": (9.0, 9.0, 9.0)})
    rows = {row["figure"]: row for row in comparison_rows([a, b.model_copy(update={"environment": later})])}
    assert not {"environment.utc", "environment.load_average"} & rows.keys(), "no two runs agree in these"
    with pytest.raises(ConfigError, match="one run alone"):
        comparison_rows([a])


def test_samples_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folder, record = made(tmp_path)
    assert "hf_verysecret" not in (folder / RECORD).read_text()
    assert "HF_TOKEN" in record.environment.secret_variables
    assert record.environment.variables["OMP_NUM_THREADS"] == "2"


def test_damaged_samples_do_not_replace_a_good_record(tmp_path: Path) -> None:
    folder, record = made(tmp_path)
    lines = (folder / SAMPLES).read_bytes().splitlines(keepends=True)
    (folder / SAMPLES).write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(ConfigError, match="whole repeats"):
        recompute_run(folder)
    (folder / SAMPLES).write_bytes(b"".join(line for line in lines if b'"send"' not in line))
    with pytest.raises(ConfigError, match="before its send"):
        recompute_run(folder)
    assert load_record(folder) == record


def test_runs_are_listed_oldest_first(tmp_path: Path) -> None:
    names = [made(tmp_path)[0].name for _ in range(5)]
    assert [folder.name for folder, _ in list_runs(tmp_path)] == names


def test_no_runs_is_an_empty_list(tmp_path: Path) -> None:
    assert list(list_runs(tmp_path / "absent")) == []


def test_a_parent_that_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--runs-dir"):
        RunFolder.create(tmp_path / "file", "cpu", "t")


WRITER = """
import sys, time
from pathlib import Path
from harness.records import RunFolder, load_record
from harness.specs.event import EndEvent
from harness.specs.record import SCHEMA_VERSION, RunRecord
record = load_record(Path(sys.argv[1])).model_copy(update={"status": "running", "analysis": None})
with RunFolder.create(Path(sys.argv[2]), "cpu", "killed") as folder:
    folder.write(record)
    print(folder.path, flush=True)
    for number in range(10**9):
        folder.append(EndEvent(repeat=number, time_s=number))
        folder.write(record.model_copy(update={"run_id": str(number)}))
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.05, 0.11])
def test_kill_9_at_any_point_leaves_a_whole_record_and_its_samples(tmp_path: Path, delay_s: float) -> None:
    done, _ = made(tmp_path / "done")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(done), str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert writer.stdout is not None
    folder = Path(writer.stdout.readline().strip())
    time.sleep(delay_s)
    assert load_record(folder).status == "running"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    record = load_record(folder)
    assert record.status == "interrupted"
    events = load_events(folder)
    assert [event.repeat for event in events if isinstance(event, EndEvent)] == list(range(len(events)))
    if record.run_id.isdigit():
        assert len(events) >= int(record.run_id)


@pytest.mark.parametrize(
    ("fault", "status", "exit_code"),
    [
        (KeyboardInterrupt(), "interrupted", 130),
        (ConfigError("what", "mend"), "failed", 2),
        (KeyError("x"), "failed", 1),
    ],
)
def test_whatever_ends_a_run_is_recorded_and_goes_on_up(fault: BaseException, status: str, exit_code: int) -> None:
    fields: dict[str, Any] = {}
    with pytest.raises(type(fault)), end_recorded(fields.update):
        raise fault
    assert fields["status"] == status
    assert fields["failure"].exit_code == exit_code


def test_samples_and_log_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "cpu", "t") as folder:
        folder.append(EndEvent(repeat=0, time_s=1.0))
        folder.log("as it happens")
        assert len(load_events(folder.path)) == 1
        assert (folder.path / "log.txt").read_text() == "as it happens\n"


def test_a_record_is_replaced_and_never_rewritten(tmp_path: Path) -> None:
    """Who has the old file open reads it whole."""
    folder, record = made(tmp_path)
    with (folder / RECORD).open() as opened:
        write_record(folder, record.model_copy(update={"run_id": "other"}))
        assert RunRecord.model_validate_json(opened.read()) == record
    assert load_record(folder).run_id == "other"


@pytest.mark.parametrize(("device", "part"), [("sm_90", "sm_90"), ("AMD EPYC/9", "AMD-EPYC-9"), ("//", "device")])
def test_a_devices_name_becomes_part_of_a_folders(tmp_path: Path, device: str, part: str) -> None:
    with RunFolder.create(tmp_path, device, "t") as folder:
        assert folder.path.parent == tmp_path
        assert folder.run_id.partition("-")[2].startswith(f"{part}-t-")


def test_a_running_record_whose_samples_are_gone_is_interrupted(tmp_path: Path) -> None:
    folder, record = made(tmp_path)
    write_record(folder, record.model_copy(update={"status": "running"}))
    (folder / SAMPLES).unlink()
    assert load_record(folder).status == "interrupted"


def test_recomputed_figures_replace_those_of_the_record(tmp_path: Path) -> None:
    folder, record = made(tmp_path)
    write_record(folder, record.model_copy(update={"requests": (), "analysis": None}))
    recompute_run(folder)
    assert load_record(folder) == record
