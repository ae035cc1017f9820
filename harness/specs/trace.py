"""What a profiler saw, the same for every format (read by `harness.traces`, explained by `harness.timeline`).

Plain tuples: a trace has millions of them. Times are seconds from the trace's first event, on the profiler's own clock.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

OWN_LAUNCH = "harness::"
"""Begins the mark of a launch of ours on a CPU, where profilers see none that torch did not make; its kind and role
follow."""
DECODE_MARK = "decode_step"
"""The mark around each decode step."""
PREFILL_MARK = "prefill"
"""Begins the mark around the part of a prompt that is taken in; its positions follow: `prefill 0-512`, the last not
among them."""
CallKind = Literal["synchronize", "memcpy", "launch", "other"]


def prefill_mark(begin: int, end: int) -> str:
    """Around the launches that take in these positions of a prompt."""
    return f"{PREFILL_MARK} {begin}-{end}"


class Work(NamedTuple):
    """A kernel or a copy on a device; of a run on a CPU an operation, which may stand within another."""

    name: str
    kind: Literal["kernel", "memcpy", "memset", "op"]
    start_s: float
    duration_s: float
    own_s: float
    """Without what stands within it: equals duration_s on a GPU, whose kernels do not nest."""
    device: str
    stream: str
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    num_bytes: int | None = None
    """Of a copy, where the profiler tells."""
    correlation: str | None = None
    """Shared with the call that launched it."""

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


class Call(NamedTuple):
    """A call of the host into the device's runtime or driver."""

    name: str
    kind: CallKind
    start_s: float
    duration_s: float
    correlation: str | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


class Mark(NamedTuple):
    """A stretch that the traced program named, such as a step."""

    name: str
    start_s: float
    duration_s: float
    on_device: bool
    """Its kernels' own stretch; else the host's."""
    number: int | None = None
    """Which of the host's it is: on a device each stream has a stretch of its own."""


class KernelSum(NamedTuple):
    """All calls of one kernel, of a format that has no timeline."""

    name: str
    num_calls: int
    total_s: float


@dataclass(frozen=True)
class Trace:
    """One file."""

    format: str
    work: tuple[Work, ...] = ()
    calls: tuple[Call, ...] = ()
    marks: tuple[Mark, ...] = ()
    sums: tuple[KernelSum, ...] | None = None
    """Instead of work, where the format has sums alone."""
    device_names: tuple[str, ...] = ()
    """Of the machine's GPUs, where the format tells."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the file."""
