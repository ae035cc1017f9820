"""What happens to a run when the world fails under it: Ctrl-C, kill -9, a full disk, a read-only place. Really done."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.records import RECORD, SAMPLES, load_events, load_record

# A run that lasts: scripted steps take no time, so this one writes samples until something stops it.
RUN = """\
name: long
model: qwen3-0.6b
engine: {kind: scripted}
workload: {input_tokens: 8, output_tokens: 40000, repeats: 50}
"""
SMALL_RUN = RUN.replace("40000", "200").replace("50", "2")


def hears_ctrl_c() -> None:
    """A job that a script sends to the background starts deaf to Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start() -> Iterator[Callable[[Path, Path], subprocess.Popen[str]]]:
    """Starts `harness bench`; what a test leaves running is killed."""
    processes = []

    def start(config: Path, runs: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "harness.cli.main", "bench", str(config), "--runs-dir", str(runs)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=hears_ctrl_c))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def measuring_folder(runs: Path, process: subprocess.Popen[str]) -> Path:
    """The run's folder, as soon as it has samples."""
    for _ in range(2000):
        found = list(runs.glob("*/" + SAMPLES))
        if found and found[0].stat().st_size > 10_000:
            return found[0].parent
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("the run never began")


@pytest.mark.parametrize("delay_s", [0.0, 0.07, 0.31])
def test_ctrl_c_keeps_what_was_measured(config: Path, tmp_path: Path, start, delay_s: float) -> None:
    process = start(config, tmp_path / "runs")
    folder = measuring_folder(tmp_path / "runs", process)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "what was measured is kept" in stderr
    assert load_record(folder).status == "interrupted"
    assert len(load_events(folder)) > 10


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2])
def test_kill_9_shows_as_interrupted_and_can_be_recomputed(config: Path, tmp_path: Path, start, delay_s: float) -> None:
    process = start(config, tmp_path / "runs")
    folder = measuring_folder(tmp_path / "runs", process)
    time.sleep(delay_s)
    process.kill()
    process.communicate()
    assert json.loads((folder / RECORD).read_text())["status"] == "running", "nobody could change it any more"
    assert load_record(folder).status == "interrupted"
    command = [sys.executable, "-m", "harness.cli.main", "runs", "recompute", str(folder), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    analysis = json.loads(done.stdout)
    assert analysis["num_repeats"] == sum(event.event == "end" for event in load_events(folder))


FULL = """
set -e
mount -t tmpfs -o size={size} tmpfs "{place}"
set +e
"{python}" -m harness.cli.main bench "{config}" --runs-dir "{place}"
echo "exit code $?"
cp -r "{place}" "{copy}"
"""


def run_on_a_full_disk(config: Path, tmp_path: Path, size: str) -> tuple[str, str, list[Path]]:
    """(stdout, stderr, run folders as the run left them) on a file system of so many bytes, in a mount namespace."""
    place, copy = tmp_path / "small", tmp_path / "copy"
    place.mkdir()
    script = FULL.format(size=size, place=place, python=sys.executable, config=config, copy=copy)
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "exit code" not in done.stdout:
        pytest.skip(f"can't mount a small file system here: {done.stderr.strip()}")
    return done.stdout, done.stderr, [path for path in copy.glob("*") if path.is_dir()]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_disk_that_fills_up_is_explained_and_loses_nothing_written(config: Path, tmp_path: Path) -> None:
    stdout, stderr, (folder,) = run_on_a_full_disk(config, tmp_path, "512k")
    assert "exit code 2" in stdout
    assert "Traceback" not in stderr
    assert "No space left" in stderr
    assert "--runs-dir" in stderr
    record = load_record(folder)
    assert record.status in ("failed", "interrupted")
    assert len(load_events(folder)) > 100
    assert not list(folder.glob(".record*")), "no temporary file is left behind"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_disk_that_is_full_from_the_start(config: Path, tmp_path: Path) -> None:
    stdout, stderr, folders = run_on_a_full_disk(config, tmp_path, "4k")
    assert "exit code 2" in stdout
    assert "Traceback" not in stderr
    assert "No space left" in stderr
    assert not any((folder / RECORD).exists() and not (folder / RECORD).stat().st_size for folder in folders)


def test_a_read_only_place(config: Path, tmp_path: Path, start) -> None:
    """Root may write anywhere by mode, so the place is read-only by its mount: /sys is, everywhere."""
    place = Path("/sys/kernel") if os.geteuid() == 0 else tmp_path / "ro"
    if os.geteuid() != 0:
        place.mkdir(mode=0o555)
    process = start(config, place / "runs")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in stderr
    assert "--runs-dir" in stderr
    assert stdout == ""


def test_two_runs_at_once_in_one_place(config: Path, tmp_path: Path, start) -> None:
    config.write_text(SMALL_RUN)
    both = [start(config, tmp_path / "runs") for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert {load_record(folder).status for folder in folders} == {"done"}
    assert [len(load_events(folder)) for folder in folders] == [15 + 2 * (4 + 200 + 6 + 2) + 1] * 2, (
        "kernel reads, repeats with readings and pauses, evidence"
    )


@pytest.mark.parametrize("command", [["--help"], ["devices"], ["schema", "run"], ["devices", "--format", "csv"]])
def test_a_full_standard_output_is_two_lines(command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli.main", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: standard output is full",
        "mend:  free some space where it is written to",
    ]
