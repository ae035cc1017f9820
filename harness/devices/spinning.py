"""Waits for threads of this process that spin: a library's, after its work, on the cores that a measurement needs next.

GNU OpenMP, which torch brings, spins for 300,000 turns before a thread sleeps: 10 ms on a Zen 3, more where a pause
takes longer. Intel's spins for 200 ms. What runs meanwhile shares its cores with them and reads too slow, so nobody is
timed after another library until the system says that its threads sleep.
"""

import time
from pathlib import Path

from harness.errors import MeasurementError

_TASKS = Path("/proc/self/task")
_POLL_S = 0.0005
LIMIT_S = 10.0
"""On a busy machine a thread waits for a core before it can go to sleep."""


def wait_for_spinning_threads(limit_s: float = LIMIT_S) -> None:
    """Returns when every other thread of this process sleeps; MeasurementError where one still runs after limit_s."""
    ours = Path("/proc/thread-self").resolve().name
    end_s = time.perf_counter() + limit_s
    while _running(ours):
        if time.perf_counter() > end_s:
            raise MeasurementError(
                f"threads of this process keep spinning for more than {limit_s:g} s, on cores that are to be measured",
                "unset OMP_WAIT_POLICY=active, GOMP_SPINCOUNT and KMP_BLOCKTIME, or set KMP_BLOCKTIME=1",
            )
        time.sleep(_POLL_S)


def _running(ours: str) -> bool:
    """Whether any thread but `ours` runs or wants to."""
    return any(_state(task) == "R" for task in _TASKS.iterdir() if task.name != ours)


def _state(task: Path) -> str:
    """The letter behind the name in parentheses, which may hold anything; empty for a thread that just ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
