"""Did others take our cores? Read from the scheduler's own books, so that a busy neighbour is seen and not guessed.

A launch on several threads ends with the slowest of them: while another process holds one core for a time slice, a
whole decode step waits, and the probe, whose launches are a thousand times longer, hardly notices. Utilization then
reads too low although memory, model and kernels are the same.
"""

import os
import time
from collections.abc import Set
from pathlib import Path

from harness.specs.event import ContentionEvent, CpuWait

_TASKS = Path("/proc/self/task")
_CPUS = Path("/proc/stat")


class WaitBooks:
    """What others take of the CPUs that this process may use, between open() and closed().

    Which CPUs is asked once, when the books are made: a thread that is pinned later may use one of them only.
    """

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self.open()

    def open(self) -> None:
        """From now on."""
        self._began_s, self._before = time.perf_counter(), cpu_wait_s(self._cpus)

    def closed(self, repeat: int) -> ContentionEvent:
        """Until now."""
        wall_s = time.perf_counter() - self._began_s
        return ContentionEvent(repeat=repeat, wall_s=wall_s, wait=waited_between(self._before, cpu_wait_s(self._cpus)))


def cpu_wait_s(cpus: Set[int]) -> CpuWait:
    """Seconds so far that our threads stood in a run queue, that these CPUs ran others, and that they were stolen.

    Differences of two calls count; a source that the kernel does not offer is null.
    """
    busy_s, stolen_s = _busy_and_stolen_s(cpus)
    others_s = None if busy_s is None else max(0.0, busy_s - time.process_time())
    return CpuWait(queued_s=_queued_s(), others_s=others_s, stolen_s=stolen_s)


def waited_between(before: CpuWait, after: CpuWait) -> CpuWait:
    """The waits of an interval. Threads that ended in it take theirs along, so a sum that shrank counts as 0."""
    return CpuWait(
        queued_s=_difference(before.queued_s, after.queued_s),
        others_s=_difference(before.others_s, after.others_s),
        stolen_s=_difference(before.stolen_s, after.stolen_s),
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


def _busy_and_stolen_s(cpus: Set[int]) -> tuple[float | None, float | None]:
    """Of these CPUs, from /proc/stat: cpuN user nice system idle iowait irq softirq steal, in ticks."""
    try:
        lines = [line.split() for line in _CPUS.read_text().splitlines()]
    except OSError:
        return None, None
    ours = {f"cpu{number}" for number in cpus}
    ticks = [[int(field) for field in line[1:9]] for line in lines if line and line[0] in ours and len(line) > 8]
    if not ticks:
        return None, None
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy = sum(user + nice + system + irq + soft for user, nice, system, _, _, irq, soft, _ in ticks)
    return busy * tick_s, sum(cpu[7] for cpu in ticks) * tick_s
