"""What a trace comes down to: `harness profile`. Definitions: docs/definitions.md, "A trace"."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from harness.roofline import Wall
from harness.specs.base import Frozen
from harness.specs.kernel_classes import KernelClass

Spanned = Literal["synchronize", "memcpy", "launch", "other", "nothing"]
"""What the host did while the device had nothing to do; other: another call of the runtime; nothing: no call of it."""


class ClassRow(Frozen):
    """All kernels of one class."""

    kernel_class: KernelClass
    num_calls: PositiveFloat
    time_s: NonNegativeFloat
    """Of its kernels together: where streams overlap, classes add up to more than the busy time."""
    time_frac: NonNegativeFloat
    """Of the wall time; of all kernels' time where the format has no timeline."""
    moved_bytes: NonNegativeFloat | None = None
    """Read and written, by the run's model; of copies as the profiler counts them."""
    flop: NonNegativeFloat | None = None
    floor_s: NonNegativeFloat | None = None
    """The higher of the two walls: bytes over the run's roof, FLOP over its peak."""
    bound: Wall | None = None
    roof_frac: NonNegativeFloat | None = None
    """floor_s over time_s."""


class GapRow(Frozen):
    """Idle time that one kind of host's call spans."""

    spanned_by: Spanned
    time_s: NonNegativeFloat
    time_frac: NonNegativeFloat
    """Of the wall time."""


class LongGap(Frozen):
    """One of the longest gaps, whole."""

    begin_s: NonNegativeFloat
    """From the trace's first event."""
    gap_s: PositiveFloat
    spanned_by: Spanned
    """What spans the largest part of it."""
    call: str | None
    """The call that spans most of it."""
    after: str | None
    before: str | None
    """The kernels on both sides."""


class KernelRow(Frozen):
    """All calls of one kernel."""

    name: str
    kernel_class: KernelClass
    num_calls: PositiveFloat
    time_s: NonNegativeFloat
    time_frac: NonNegativeFloat
    """As of a class."""
    moved_bytes: NonNegativeFloat | None = None
    """Where its name says which product it is, as our marks on a CPU do, and where it is alone in its class. Null:
    several kernels of a class share the class's bytes in a way that nothing tells."""
    flop: NonNegativeFloat | None = None
    floor_s: NonNegativeFloat | None = None
    roof_frac: NonNegativeFloat | None = None
    """floor_s over time_s."""
    bound: Wall | None = None
    """Its own wall, else that of its class; null where neither is known."""
    class_roof_frac: NonNegativeFloat | None = None
    """Of all kernels of its class together."""
    why: str
    """How far its calls are from its wall."""


class WhatIf(Frozen):
    """What the wall time would be."""

    what: str
    wall_s: NonNegativeFloat
    speedup: PositiveFloat | None
    """Null where nothing would be left."""


class TraceProfile(Frozen):
    """One trace. Times, calls, bytes and FLOP are per `per`."""

    trace: str
    """The file's name."""
    format: str
    status: Literal["complete", "incomplete"]
    """incomplete: the profiler lost kernels, or can't see them; then nothing is said of idle time."""
    reason: str | None
    """Why it is incomplete."""
    device: str | None
    """The one with the most kernel time."""
    per: Literal["step", "prompt", "trace"]
    """prompt: the part of one that `positions` names, taken in once."""
    positions: tuple[NonNegativeInt, PositiveInt] | None = None
    """(begin, end) of the prompt's positions that were taken in."""
    num_steps: PositiveInt | None
    steps_source: str | None
    wall_s: PositiveFloat | None
    """Null where the format has no timeline."""
    busy_s: NonNegativeFloat | None
    """At least one kernel or copy runs."""
    gaps_s: NonNegativeFloat | None
    """wall_s - busy_s."""
    num_gaps: NonNegativeFloat | None
    classes: tuple[ClassRow, ...]
    """The one with the most time first."""
    gaps: tuple[GapRow, ...] = ()
    longest_gaps: tuple[LongGap, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    """The three with the most time, copies and fills left out."""
    other_kernels: tuple[KernelRow, ...] = ()
    """All that no rule knows, the one with the most time first."""
    cause: str | None = None
    """In the words of a run's verdict; null where the trace is incomplete."""
    why: str | None = None
    next_step: str
    what_ifs: tuple[WhatIf, ...] = ()
    mean_context: NonNegativeInt | None = None
    """Of the run's decode steps: bytes and FLOP are those of its model there."""
    notes: tuple[str, ...] = ()
