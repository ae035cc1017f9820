"""Sets of time and nested spans: by hand, and against counting points one by one."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.timeline.intervals import Interval, difference, intersection, length, own_times, union

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (float(pair[0]), float(sum(pair)))), max_size=12
)


def points(intervals: Sequence[Interval]) -> set[int]:
    """Whole numbers n whose stretch n to n + 1 is covered; ends are whole numbers here."""
    return {n for begin, end in intervals for n in range(int(begin), int(end))}


def test_by_hand() -> None:
    a, b = union([(5, 7), (0, 2), (1, 3), (4, 4)]), [(2.0, 6.0)]
    assert a == [(0, 3), (5, 7)]
    assert intersection(a, b) == [(2, 3), (5, 6)]
    assert difference(a, b) == [(0, 2), (6, 7)]
    assert difference([(0, 10)], a) == [(3, 5), (7, 10)]
    assert length(a) == 5


@given(INTERVALS, INTERVALS)
def test_they_are_sets(a: list[Interval], b: list[Interval]) -> None:
    x, y = union(a), union(b)
    assert points(x) == points(a)
    assert points(intersection(x, y)) == points(x) & points(y)
    assert points(difference(x, y)) == points(x) - points(y)
    for found in (x, intersection(x, y), difference(x, y)):
        assert all(begin < end for begin, end in found)
        assert all(one[1] <= other[0] for one, other in pairwise(found))
        assert length(found) == len(points(found))


def nested(draw: st.DrawFn, begin: float, end: float, depth: int) -> list[Interval]:
    """Spans of one thread: siblings do not overlap, and each lies within its parent."""
    spans, at = [], begin
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.floats(at, end))
        last = draw(st.floats(first, end))
        spans.append((first, last))
        if depth:
            spans += nested(draw, first, last, depth - 1)
        at = last
    return spans


@given(st.composite(lambda draw: nested(draw, 0.0, 1.0, 3))())
def test_own_times_add_up_to_the_wall(spans: list[Interval]) -> None:
    own = own_times(spans)
    assert all(0 <= time <= end - begin for time, (begin, end) in zip(own, spans, strict=True))
    assert sum(own) == pytest.approx(length(union(spans)), abs=1e-12)


def test_a_span_that_outlives_its_parent_by_the_clocks_rounding_counts_within_it() -> None:
    assert own_times([(0.0, 10.0), (4.0, 10.5)]) == [4.0, 6.0]
    assert own_times([(3.0, 3.0), (0.0, 10.0), (0.0, 10.0)]) == [0.0, 0.0, 10.0]
