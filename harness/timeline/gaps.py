"""Idle time of a device: where it is, and what the host did meanwhile. Pure."""

from collections.abc import Sequence
from typing import get_args

from harness.specs.profile import GapRow, LongGap, Spanned
from harness.specs.trace import Call, CallKind, Work
from harness.timeline.intervals import Interval, difference, intersection, length, union

CLOCK_STEP_S = 1e-9
"""Neighbouring kernels lie so far apart by rounding alone."""
NUM_LONGEST = 5


def find_gaps(work: Sequence[Work], window: Interval) -> list[Interval]:
    """Parts of the window in which none of the work runs, on any stream. Work from before it that runs on into
    it fills it too."""
    return difference([window], union((w.start_s, w.end_s) for w in work))


def num_gaps(gaps: Sequence[Interval]) -> int:
    return sum(end - begin > CLOCK_STEP_S for begin, end in gaps)


def split_by_span(gaps: Sequence[Interval], calls: Sequence[Call]) -> dict[Spanned, list[Interval]]:
    """Each moment of the gaps under the first kind of call, in the order of `CallKind`, that is open in it: a thread
    that waits for the device explains it better than one that launches. The parts add up to the gaps."""
    parts: dict[Spanned, list[Interval]] = {}
    rest = list(gaps)
    for kind in get_args(CallKind):
        under = union((call.start_s, call.end_s) for call in calls if call.kind == kind)
        parts[kind] = intersection(rest, under)
        rest = difference(rest, under)
    return parts | {"nothing": rest}


def gap_rows(parts: dict[Spanned, list[Interval]], wall_s: float, scale: float) -> tuple[GapRow, ...]:
    """The largest first, those without any time left out. scale: one over the number of steps."""
    times = {kind: length(part) for kind, part in parts.items()}
    return tuple(
        GapRow(spanned_by=kind, time_s=time_s * scale, time_frac=time_s / wall_s)
        for kind, time_s in sorted(times.items(), key=lambda item: -item[1])
        if time_s > 0
    )


def longest(
    gaps: Sequence[Interval], parts: dict[Spanned, list[Interval]], calls: Sequence[Call], work: Sequence[Work]
) -> tuple[LongGap, ...]:
    """The longest gaps, the longest first."""
    found = sorted((gap for gap in gaps if gap[1] - gap[0] > CLOCK_STEP_S), key=lambda gap: gap[0] - gap[1])
    return tuple(_long_gap(gap, parts, calls, work) for gap in found[:NUM_LONGEST])


def _long_gap(
    gap: Interval, parts: dict[Spanned, list[Interval]], calls: Sequence[Call], work: Sequence[Work]
) -> LongGap:
    begin, end = gap
    spanned: Spanned = max(parts, key=lambda kind: length(intersection([gap], parts[kind])))
    under = [call for call in calls if call.kind == spanned and call.start_s < end and call.end_s > begin]
    call = max(under, key=lambda call: min(end, call.end_s) - max(begin, call.start_s), default=None)
    after = max((w for w in work if w.end_s <= begin + CLOCK_STEP_S), key=lambda w: w.end_s, default=None)
    before = min((w for w in work if w.start_s >= end - CLOCK_STEP_S), key=lambda w: w.start_s, default=None)
    return LongGap(
        begin_s=begin, gap_s=end - begin, spanned_by=spanned, call=call.name if call else None,
        after=after.name if after else None, before=before.name if before else None,
    )  # fmt: skip
