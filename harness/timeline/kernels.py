"""The kernels that take a trace's time: each one's own wall where it is known, and how far from it its calls are. Pure.

What a kernel moves is known where its name says which product it is, and where it is alone in its class: then it moves
what the class does. Several kernels of one class share the class's bytes in a way that nothing tells.
"""

from collections.abc import Sequence
from typing import NamedTuple

from harness.roofline import Floor, frac
from harness.specs.kernel_classes import KernelClass
from harness.specs.profile import ClassRow, KernelRow
from harness.timeline.floors import Moved, StepWork
from harness.units import percent
from harness.verdict import AT_WALL_FROM_FRAC

ALONE_FROM_FRAC = 0.99
"""Of a class's time: who takes that much moves what the class moves, within the error of any roof."""
ABOVE_ITS_ROOF_FRAC = 1.1


class Total(NamedTuple):
    """All calls of one kernel in the steps that count."""

    name: str
    kernel_class: KernelClass
    num_calls: int
    time_s: float
    num_bytes: int | None
    """Of copies, where each is known."""


def kernel_rows(
    totals: Sequence[Total], classes: Sequence[ClassRow], work: StepWork | None, num_steps: int, whole_s: float
) -> tuple[KernelRow, ...]:
    """The one with the most time first. work: null where a step's bytes are not those of the trace."""
    of_class = {row.kernel_class: row for row in classes}
    alone = _alone(totals)
    return tuple(
        _row(total, of_class[total.kernel_class], work, total.name in alone, num_steps, whole_s)
        for total in sorted(totals, key=lambda total: -total.time_s)
    )


def _alone(totals: Sequence[Total]) -> set[str]:
    """Names of kernels that take their class's time alone."""
    times: dict[KernelClass, float] = {}
    for total in totals:
        times[total.kernel_class] = times.get(total.kernel_class, 0.0) + total.time_s
    return {t.name for t in totals if t.time_s and t.time_s >= ALONE_FROM_FRAC * times[t.kernel_class]}


def _row(
    total: Total, of_class: ClassRow, work: StepWork | None, is_alone: bool, num_steps: int, whole_s: float
) -> KernelRow:
    moved = _moved(total, work, is_alone)
    floor = work.floor_of(moved) if work else None
    num_calls, time_s = total.num_calls / num_steps, total.time_s / num_steps
    return KernelRow(
        name=total.name, kernel_class=total.kernel_class, num_calls=num_calls, time_s=time_s,
        time_frac=frac(total.time_s, whole_s) or 0.0,
        moved_bytes=moved.num_bytes if moved else None, flop=moved.flop if moved else None,
        floor_s=floor.floor_s if floor else None, roof_frac=frac(floor.floor_s, time_s) if floor else None,
        bound=floor.bound if floor else of_class.bound, class_roof_frac=of_class.roof_frac,
        why=_distance(floor, num_calls, time_s) if floor else _unknown(of_class),
    )  # fmt: skip


def _moved(total: Total, work: StepWork | None, is_alone: bool) -> Moved | None:
    if work is None:
        return None
    return work.launches.get(total.name) or (work.moved.get(total.kernel_class) if is_alone else None)


def _distance(floor: Floor, num_calls: float, time_s: float) -> str:
    """From its wall, in words: by a call, since what a call costs beside its bytes comes once for each."""
    wall = "compute" if floor.bound == "compute" else "memory"
    reached = frac(floor.floor_s, time_s) or 0.0
    if reached > ABOVE_ITS_ROOF_FRAC:
        return f"{percent(reached)} of its {wall} roof: a cache serves it, or its bytes are counted too high"
    if reached >= AT_WALL_FROM_FRAC:
        return f"at its {wall} wall"
    above_s, floor_s = (time_s - floor.floor_s) / num_calls, floor.floor_s / num_calls
    return f"{above_s * 1e6:,.1f} us a call above its {wall} floor of {floor_s * 1e6:,.1f}"


def _unknown(of_class: ClassRow) -> str:
    if of_class.roof_frac is None:
        return "what it moves is not known"
    return f"one of several of its class, which together are at {percent(of_class.roof_frac)} of their roof"
