"""Sets of points in time, as sorted disjoint intervals (begin, end), and the own times of nested spans. Pure."""

import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in any order, overlapping or not, as a set; empty ones vanish."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What is in both sets."""
    common, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            common.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What is in a and not in b."""
    left, j = [], 0
    for begin, end in a:
        while j < len(b) and b[j][1] <= begin:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if b[k][0] > begin:
                left.append((begin, b[k][0]))
            begin = max(begin, b[k][1])
            k += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Of disjoint intervals together."""
    return math.fsum(end - begin for begin, end in intervals)


def own_times(spans: Sequence[Interval]) -> list[float]:
    """Of each span of one thread the time in which no span within it runs: they add up to their union.

    Clocks round: a span that outlives the one that it began in counts as far as that one goes.
    """
    own = [0.0] * len(spans)
    open_spans: list[tuple[int, float]] = []  # (which, where it ends), the innermost last
    for index in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1])):
        begin, end = spans[index]
        while open_spans and open_spans[-1][1] <= begin:
            open_spans.pop()
        if open_spans:
            parent, parent_end = open_spans[-1]
            end = min(end, parent_end)
            own[parent] -= end - begin
        own[index] = end - begin
        open_spans.append((index, end))
    return [max(0.0, time_s) for time_s in own]
