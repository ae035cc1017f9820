"""One measurement at a time: the second process says so, waits, and goes on when the first has ended."""

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import UnavailableError
from harness.exclusive import measuring

HOLDER = """
import time
from harness.exclusive import measuring
with measuring(print):
    print("holding", flush=True)
    time.sleep(60)
"""


def test_a_second_measurement_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "holding"
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        holder.kill()  # kill -9: the lock goes with the process

    began = time.monotonic()
    with measuring(say):
        assert len(said) == 1
        assert "waiting" in said[0]
        holder.wait()
        (lock,) = tmp_path.iterdir()
        with lock.open() as file, pytest.raises(BlockingIOError):  # it has the lock now, and did not just go on
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert time.monotonic() - began < 30
    holder.wait()


def test_without_another_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[str] = []
    for _ in range(2):
        with measuring(said.append):
            pass
    assert said == []


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user could lay a link at a known name in a shared folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with measuring(print):
        (lock,) = tmp_path.iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="lock"), measuring(print):
        pass
    assert not (tmp_path / "elsewhere").exists()
