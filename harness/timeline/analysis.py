"""From a trace to what it says. Pure.

busy + gaps = wall, on the timeline of the one device that has the most kernel time. Times are per decode step where the
number of steps is known, else per trace.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.roofline import frac
from harness.specs.engine import Evidence
from harness.specs.kernel_classes import KernelClass
from harness.specs.profile import ClassRow, TraceProfile
from harness.specs.trace import KernelSum, Trace, Work
from harness.timeline.classes import ClassOf
from harness.timeline.complete import lost_launches, why_gaps_are_unknown, why_incomplete
from harness.timeline.floors import StepWork, evidence, losses_by_floors
from harness.timeline.gaps import find_gaps, gap_rows, longest, num_gaps, split_by_span
from harness.timeline.intervals import length
from harness.timeline.kernels import Total, kernel_rows
from harness.timeline.steps import Steps, find_steps
from harness.timeline.what_ifs import what_ifs
from harness.units import percent
from harness.verdict import MIN_CAUSE_SHARE_FRAC, NEXT_STEP, find_cause, largest_loss

NUM_KERNELS = 3
OVERLAP_WORTH_A_NOTE_FRAC = 0.01
TAKE_AGAIN = (
    "take the trace again with both activities of torch.profiler, CPU and CUDA (which is ROCm, too), or with hipprof;"
    " of a model on the CPU, with the GPU hidden (CUDA_VISIBLE_DEVICES=)"
)
WITH_RUN = "harness profile TRACE --run RUN: with a run's bytes and roof a class shows how far it is from its wall"


@dataclass(frozen=True)
class Scaled:
    """Rows of totals: over the number of steps, and as shares of the whole."""

    num_steps: int
    whole_s: float
    """Before it is divided by the steps."""
    work: StepWork | None
    """Null too where the number of steps is not known: a step's bytes over a trace's time mean nothing."""

    def class_rows(self, totals: Sequence[Total]) -> tuple[ClassRow, ...]:
        by_class: dict[KernelClass, list[Total]] = {}
        for total in totals:
            by_class.setdefault(total.kernel_class, []).append(total)
        rows = [self._class_row(kernel_class, several) for kernel_class, several in by_class.items()]
        return tuple(sorted(rows, key=lambda row: -row.time_s))

    def _class_row(self, kernel_class: KernelClass, totals: Sequence[Total]) -> ClassRow:
        time_s = sum(total.time_s for total in totals)
        moved = self.work.moved.get(kernel_class) if self.work else None
        floor = self.work.floor(kernel_class) if self.work else None
        copied = [total.num_bytes for total in totals if total.num_bytes is not None]
        num_bytes = sum(copied) / self.num_steps if len(copied) == len(totals) else None
        return ClassRow(
            kernel_class=kernel_class,
            num_calls=sum(total.num_calls for total in totals) / self.num_steps,
            time_s=time_s / self.num_steps,
            time_frac=frac(time_s, self.whole_s) or 0.0,
            moved_bytes=moved.num_bytes if moved else num_bytes,
            flop=moved.flop if moved else None,
            floor_s=floor.floor_s if floor else None,
            bound=floor.bound if floor else None,
            roof_frac=frac(floor.floor_s, time_s / self.num_steps) if floor else None,
        )


def explain(
    trace: Trace, name: str, class_of: ClassOf, num_steps: int | None = None, work: StepWork | None = None
) -> TraceProfile:
    """The whole answer. num_steps: the user's word, which goes before the trace's own. work: a run's decode step."""
    if (lost := why_incomplete(trace)) is not None:
        return _incomplete(trace, name, lost)
    if trace.sums is not None:
        return _of_sums(trace, trace.sums, name, class_of, num_steps, work)
    return _of_timeline(trace, name, class_of, num_steps, work)


def _incomplete(trace: Trace, name: str, reason: str) -> TraceProfile:
    return TraceProfile(
        trace=name, format=trace.format, status="incomplete", reason=reason, device=None, per="trace", num_steps=None,
        steps_source=None, wall_s=None, busy_s=None, gaps_s=None, num_gaps=None, classes=(), next_step=TAKE_AGAIN,
        notes=trace.notes,
    )  # fmt: skip


def _of_sums(
    trace: Trace, sums: Sequence[KernelSum], name: str, class_of: ClassOf, num_steps: int | None, work: StepWork | None
) -> TraceProfile:
    totals = [Total(s.name, class_of(s.name), s.num_calls, s.total_s, None) for s in sums]
    scaled = Scaled(num_steps or 1, sum(total.time_s for total in totals), work if num_steps else None)
    rows = scaled.class_rows(totals)
    return TraceProfile(
        trace=name, format=trace.format, status="complete", reason=None, device=None,
        wall_s=None, busy_s=None, gaps_s=None, num_gaps=None, cause="unknown", why="sums alone: no timeline, no gaps",
        next_step="take a trace with a timeline: hipprof's JSON, or torch.profiler's",
        what_ifs=what_ifs(rows, scaled.whole_s / scaled.num_steps, None),
        **_common(scaled, totals, rows, Steps((0.0, 0.0), num_steps, "--steps" if num_steps else None)),
        notes=trace.notes,
    )  # fmt: skip


def _of_timeline(
    trace: Trace, name: str, class_of: ClassOf, num_steps: int | None, work: StepWork | None
) -> TraceProfile:
    device, others = _busiest(trace.work)
    on_device = [w for w in trace.work if w.device == device]
    steps = find_steps(trace, on_device, num_steps)
    counted = [w for w in on_device if steps.window[0] <= w.start_s < steps.window[1]]
    gaps = find_gaps(on_device, steps.window)
    if (lost := why_gaps_are_unknown(trace, gaps, steps.window)) is not None:
        return _incomplete(trace, name, lost)
    scaled = Scaled(steps.num_steps or 1, length([steps.window]), work if steps.num_steps else None)
    totals = _totals(counted, class_of)
    rows, parts = scaled.class_rows(totals), split_by_span(gaps, trace.calls)
    wall_s, gaps_s = scaled.whole_s / scaled.num_steps, length(gaps) / scaled.num_steps
    found = evidence(rows, scaled.work, scaled.num_steps, wall_s, gaps_s)
    cause, why = _cause(found, scaled.work) if steps.positions is None else _prompts_cause(rows, scaled.work, found)
    return TraceProfile(
        trace=name, format=trace.format, status="complete", reason=None, device=device,
        wall_s=wall_s, busy_s=max(0.0, wall_s - gaps_s), gaps_s=gaps_s, num_gaps=num_gaps(gaps) / scaled.num_steps,
        gaps=gap_rows(parts, scaled.whole_s, 1 / scaled.num_steps),
        longest_gaps=longest(gaps, parts, trace.calls, on_device),
        cause=cause, why=why, next_step=_next_step(cause, scaled.work),
        what_ifs=what_ifs(rows, wall_s, gaps_s),
        **_common(scaled, totals, rows, steps),
        notes=tuple(_notes(trace, steps, others, rows, wall_s - gaps_s)),
    )  # fmt: skip


def _common(scaled: Scaled, totals: Sequence[Total], rows: Sequence[ClassRow], steps: Steps) -> dict[str, Any]:
    """Fields of formats with a timeline and without."""
    kernels = kernel_rows(totals, rows, scaled.work, scaled.num_steps, scaled.whole_s)
    return {
        "per": "prompt" if steps.positions else "step" if steps.num_steps else "trace",
        "positions": steps.positions,
        "num_steps": steps.num_steps,
        "steps_source": steps.source,
        "classes": tuple(rows),
        "kernels": tuple(kernel for kernel in kernels if kernel.kernel_class != "memcpy")[:NUM_KERNELS],
        "other_kernels": tuple(kernel for kernel in kernels if kernel.kernel_class == "other"),
        "mean_context": scaled.work.mean_context if scaled.work else None,
    }


def _busiest(work: Iterable[Work]) -> tuple[str, list[str]]:
    """(the device with the most kernel time, the others)."""
    times: dict[str, float] = {}
    for w in work:
        times[w.device] = times.get(w.device, 0.0) + w.own_s
    first, *others = sorted(times, key=lambda device: -times[device])
    return first, others


def _totals(work: Iterable[Work], class_of: ClassOf) -> list[Total]:
    by_name: dict[tuple[str, KernelClass], list[Work]] = {}
    for w in work:
        kernel_class: KernelClass = "memcpy" if w.kind in ("memcpy", "memset") else class_of(w.name)
        by_name.setdefault((w.name, kernel_class), []).append(w)
    return [
        Total(name, kernel_class, len(calls), sum(w.own_s for w in calls), _sum_known([w.num_bytes for w in calls]))
        for (name, kernel_class), calls in by_name.items()
    ]


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _cause(found: Evidence, work: StepWork | None) -> tuple[str, str]:
    """As a run's verdict names it. Without a roof only what is lost whole can be told: idle gaps and communication,
    each of them where it is half of the time, so half of any loss."""
    if work is not None and work.roof_bytes_per_s is not None:
        cause, why = find_cause(found, work.roof_bytes_per_s)
        return cause, why.removeprefix("; ")
    lost = {"outside-kernels": found.outside_kernels_s or 0.0, "communication": found.communication_s or 0.0}
    cause = max(lost, key=lambda name: lost[name])
    share = lost[cause] / (found.step_s or 1.0)
    if share < MIN_CAUSE_SHARE_FRAC:
        return "unknown", "neither gaps nor communication are half of the time, and no floor of the rest is known"
    return cause, f"{cause} takes {percent(share)} of the time"


def _prompts_cause(rows: Sequence[ClassRow], work: StepWork | None, found: Evidence) -> tuple[str, str]:
    """A prompt's wall is mostly arithmetic, so each part is held against the higher of its two walls."""
    if work is None or work.roof_bytes_per_s is None or work.peak_flop_per_s is None or found.step_s is None:
        return _cause(found, None)
    losses = losses_by_floors(rows, found.outside_kernels_s or 0.0)
    cause, why = largest_loss(losses, found.step_s - sum(row.floor_s or 0.0 for row in rows))
    return cause, why.removeprefix("; ").replace("a step", "of the prompt")


def _next_step(cause: str, work: StepWork | None) -> str:
    if cause != "unknown":
        return NEXT_STEP[cause]
    return WITH_RUN if work is None else "begin with the largest gain among the what-ifs"


def _notes(trace: Trace, steps: Steps, others: Sequence[str], rows: Sequence[ClassRow], busy_s: float) -> list[str]:
    notes = list(trace.notes)
    if steps.num_steps is None:
        notes.append("how many decode steps it holds is not known: figures are per trace (--steps N)")
    if others:
        notes.append(f"{len(others)} more devices are left out: {', '.join(others)}")
    if lost := lost_launches(trace):
        notes.append(f"{lost} launches have no kernel in the trace")
    if not trace.calls:
        notes.append("no runtime call is in the trace: what the host did in the gaps is not known")
    overlap_s = sum(row.time_s for row in rows) - busy_s
    if overlap_s > OVERLAP_WORTH_A_NOTE_FRAC * busy_s:
        notes.append(f"kernels overlap for {overlap_s * 1e3:,.3f} ms: what-ifs are upper bounds of the gain")
    return notes
