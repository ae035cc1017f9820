"""Did others take our cores? Read from the scheduler's own books, so that a busy neighbour is seen and not guessed.

A launch on several threads ends with the slowest of them: while another process holds one core for a time slice, a
whole decode step waits, and the probe, whose launches are a thousand times longer, hardly notices. Utilization then
reads too low although memory, model and kernels are the same.
"""

import os
from pathlib import Path

from harness.specs.event import CpuWait

_TASKS = Path("/proc/self/task")


def cpu_wait_s() -> CpuWait:
    """Seconds so far that threads of this process stood in a run queue, and that the hypervisor gave to others.

    Differences of two calls count; a source that the kernel does not offer is null.
    """
    return CpuWait(queued_s=_queued_s(), stolen_s=_stolen_s())


def waited_between(before: CpuWait, after: CpuWait) -> CpuWait:
    """The waits of an interval. Threads that ended in it take theirs along, so a sum that shrank counts as 0."""
    return CpuWait(
        queued_s=_difference(before.queued_s, after.queued_s), stolen_s=_difference(before.stolen_s, after.stolen_s)
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _queued_s() -> float | None:
    """Second field of each thread's schedstat: nanoseconds runnable but not running."""
    try:
        texts = [(task / "schedstat").read_text() for task in _TASKS.iterdir()]
    except OSError:  # no schedstat in this kernel, or a thread ended meanwhile
        return None
    return sum(int(text.split()[1]) for text in texts) / 1e9


def _stolen_s() -> float | None:
    """`steal`, the eighth figure of /proc/stat's first line: clock ticks, summed over all CPUs."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else None
