"""A comparison that is broken off leaves the rows of the problems that it finished, and no table."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_ab import ARENA_BYTES, HF

pytest.importorskip("torch")

from typer.testing import CliRunner

from harness.cli.main import app
from harness.records import load_record
from harness.specs.ab import AB_EVENT, AbRecord, AbSampleEvent

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

COMMAND = f"""
from harness.ab import compare
from harness.ab.operands import arena
from harness.cli.main import app
from harness.specs.run import ProbeConfig

arena.ROTATION_CACHES, arena.MIN_ROTATION_BYTES = 0, {ARENA_BYTES}
config = ProbeConfig(buffer_bytes=1 << 20, survey_s=0.05, reading_s=0.001)
compare.ProbeConfig = lambda **_: config
app()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Compares eight problems, to a precision that none reaches, and is at the second or the third."""
    (tmp_path / "config.json").write_text(json.dumps(HF))
    asked = ["--backend", "torch-mv", "--precision", "0.0001", "--device", "cpu", "--save", "--runs-dir", "runs"]
    command = [sys.executable, "-c", COMMAND, "ab", "linear", "--model", "config.json", *asked]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr is not None
    heard = iter(process.stderr.readline, "")
    assert any(line.startswith("1 of 8 problems done") for line in heard), "it ended before"
    yield process
    process.kill()
    process.communicate()


def assert_kept(tmp_path: Path) -> AbRecord:
    (folder,) = (tmp_path / "runs").iterdir()
    record = load_record(folder)
    assert isinstance(record, AbRecord) and record.status == "interrupted"
    finished = {row.shape for row in record.rows}
    assert 1 <= len(finished) < record.num_problems == 8
    assert {row.backend for row in record.rows} == {"torch", "torch-mv"}
    assert all(row.call_s and row.ratio_to_baseline for row in record.rows)
    assert record.rotation_bytes == ARENA_BYTES and record.probe is not None and record.cpu_wait_frac is not None
    events = [AB_EVENT.validate_json(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert finished <= {event.shape for event in events if isinstance(event, AbSampleEvent)}
    done = f"{len(finished)} of 8 problems finished"
    runs = ["--runs-dir", str(tmp_path / "runs")]
    listed = CliRunner().invoke(app, ["runs", "list", *runs]).stdout
    assert "interrupted" in listed and done in listed
    shown = CliRunner().invoke(app, ["runs", "show", folder.name, *runs]).stdout
    assert done in shown and all(shape in shown for shape in finished)
    assert not (tmp_path / "configs").exists(), "no table of a part"
    return record


def test_ctrl_c_leaves_the_problems_that_are_finished(process: subprocess.Popen[str], tmp_path: Path) -> None:
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr and "what was measured is kept" in stderr
    record = assert_kept(tmp_path)
    assert record.failure is not None and record.failure.exit_code == 130


def test_a_kill_leaves_them_too(process: subprocess.Popen[str], tmp_path: Path) -> None:
    process.kill()
    process.communicate()
    assert assert_kept(tmp_path).failure is None
