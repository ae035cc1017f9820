"""scripts/gpu_check.sh where no card is: python is a stand-in that does what a test says, and limits are a second."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/gpu_check.sh"
PYTHON = """#!/bin/sh
echo "$*" >>"$LOG/commands"
case "$*" in *"$WORDS"*) eval "$DOES" ;; esac
"""
TIMEOUT = """#!/bin/sh
echo "$1" >>"$LOG/limits"
shift
PATH=$REAL_PATH exec timeout 1 "$@"
"""
STEPS = (
    "doctor",
    "kernel-tests",
    "bench",
    "ab-linear",
    "ab-attention",
    "ab-linear-attention",
    "ab-graph",
    "triton-tests",
)
VLLM_STEPS = ("ab-linear", "ab-attention", "bench-off", "bench-on", "ab-run")


def check(folder: Path, *options: str, words: str = "", does: str = "") -> subprocess.CompletedProcess[str]:
    """A run of the script whose calls of python with these words in them do something; the rest end well at once."""
    for name, text in (("python", PYTHON), ("timeout", TIMEOUT)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = os.environ["PATH"]
    told = {"LOG": str(folder), "REAL_PATH": path, "WORDS": words, "DOES": does, "PYTHON": "python"}
    command = [SCRIPT, *options, folder / "out"]
    environment = {**os.environ, **told, "PATH": f"{folder}:{path}"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def summary(folder: Path) -> dict[str, int]:
    """The exit code of each step, in turn."""
    rows = (line.split() for line in (folder / "out/summary.txt").read_text().splitlines())
    return {name: int(code) for name, _, code, *_ in rows}


@pytest.mark.parametrize("options, steps", [((), STEPS), (("--vllm",), VLLM_STEPS)])
def test_all_limits_together_are_under_eight_minutes(tmp_path: Path, options: tuple[str, ...], steps: tuple) -> None:
    assert check(tmp_path, *options).returncode == 0
    assert summary(tmp_path) == dict.fromkeys(steps, 0)
    limits = [int(limit) for limit in (tmp_path / "limits").read_text().split()]
    assert len(limits) == len(steps) and sum(limits) < 480
    assert " -x " not in (tmp_path / "commands").read_text(), "the first failure hides what else fails"


@pytest.mark.parametrize(
    "does, listed, code",
    [("exit 1", 1, 1), ("exit 4", 4, 0), ("exec sleep 60", 124, 1)],
    ids=["fails", "unstable", "hangs"],
)
def test_a_step_that_does_not_end_well(tmp_path: Path, does: str, listed: int, code: int) -> None:
    done = check(tmp_path, words=" ab attention ", does=does)
    assert done.returncode == code
    assert summary(tmp_path) == dict.fromkeys(STEPS, 0) | {"ab-attention": listed}


def test_without_a_card(tmp_path: Path) -> None:
    done = check(tmp_path, words="cuda.is_available", does="exit 1")
    assert done.returncode == 3 and "torch sees no card" in done.stderr
    assert summary(tmp_path) == {}
