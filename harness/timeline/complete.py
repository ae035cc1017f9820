"""Whether a trace holds the kernels that ran: a profiler that lost them must not read as an idle device. Pure."""

from collections.abc import Sequence

from harness.specs.trace import Call, Trace, Work
from harness.timeline.intervals import Interval, length, union

MAX_LOST_FRAC = 0.1
"""Of launches: at both ends of a trace some stand without their kernels."""
MIN_BUSY_FRAC = 0.5
"""Kernels are believed all to be there above it, whatever the launches say."""


def why_incomplete(trace: Trace) -> str | None:
    """In one sentence; null for a trace that can be believed."""
    if trace.sums is not None:
        return None if trace.sums else "no kernels in it"
    launches = sum(call.kind == "launch" for call in trace.calls)
    if not any(w.duration_s for w in trace.work):
        gpu = f" of {trace.device_names[0]}" if trace.device_names else ""
        return f"no kernels{gpu} in it, while the host shows {launches} launches"
    busy = busy_frac(trace)
    if trace.work[0].kind == "op":
        if busy < MIN_BUSY_FRAC:
            return (
                f"torch's operations cover {busy:.1%} of the time: the rest is Python, or kernels that torch's"
                " profiler can't see"
            )
        return None
    lost = lost_launches(trace)
    if lost > MAX_LOST_FRAC * launches and busy < MIN_BUSY_FRAC:
        return f"{lost} of {launches} launches have no kernel, and kernels cover {busy:.1%} of the time: lost, not idle"
    return None


def why_gaps_are_unknown(trace: Trace, gaps: Sequence[Interval], window: Interval) -> str | None:
    """Why gaps of a GPU may be kernels that the profiler lost, in one sentence: nothing tells where no launch is there
    to count."""
    if trace.work[0].kind == "op" or any(call.kind == "launch" for call in trace.calls):
        return None
    busy = 1 - length(gaps) / (length([window]) or 1.0)
    if busy >= MIN_BUSY_FRAC:
        return None
    return f"kernels cover {busy:.1%} of the time, and no launch is in it: whether kernels were lost can't be told"


def busy_frac(trace: Trace) -> float:
    """Share of the whole trace, host's calls included, in which at least one kernel or operation runs."""
    busy_s = length(union((w.start_s, w.end_s) for w in trace.work))
    everything: list[Work | Call] = [*trace.work, *trace.calls]
    wall_s = max(e.end_s for e in everything) - min(e.start_s for e in everything)
    return busy_s / wall_s if wall_s else 1.0


def lost_launches(trace: Trace) -> int:
    """Launches that no kernel shares its correlation with; by their mere numbers where the format has none."""
    launches = [call for call in trace.calls if call.kind == "launch"]
    known = {w.correlation for w in trace.work if w.correlation is not None}
    if known and all(call.correlation is not None for call in launches):
        return sum(call.correlation not in known for call in launches)
    return max(0, len(launches) - sum(w.kind == "kernel" for w in trace.work))
