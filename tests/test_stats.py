"""Statistics: known answers, and intervals that cover as often as they say."""

import math
import random

import numpy as np
import pytest

from harness.stats import mean_interval, median, median_interval, paired_ratio, percentile


def test_percentiles_are_numpys_linear_ones() -> None:
    # 50 values 1..50: P99 stands 0.99 x 49 = 48.51 above the first: between the two largest
    assert percentile(list(range(1, 51)), 99) == pytest.approx(49.51)
    assert median([3.0, 1.0, 2.0, 10.0]) == 2.5
    assert percentile([], 50) is None


def test_t_interval_by_hand() -> None:
    # logs 0, ln 2 -> mean ln 2 / 2, sd ln 2 / sqrt 2, half = 12.706 x sd / sqrt 2
    low, high = mean_interval([1.0, 2.0]) or (0, 0)
    half = 12.7062 * math.log(2) / 2
    assert low == pytest.approx(math.exp(math.log(2) / 2 - half), rel=1e-4)
    assert high == pytest.approx(math.exp(math.log(2) / 2 + half), rel=1e-4)
    assert mean_interval([1.0]) is None


def test_t_interval_covers_95_of_100() -> None:
    draw = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = mean_interval([draw.lognormvariate(0.3, 0.05) for _ in range(5)]) or (0, 0)
        hits += low <= math.exp(0.3) <= high
    assert 0.94 < hits / 2000 < 0.96


def test_interval_of_the_median_by_order() -> None:
    assert median_interval([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 800.0]) == (2.0, 9.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.0, 5.0), "fewer than six: the whole range"
    draw = random.Random(4)
    hits = 0
    for _ in range(500):
        low, high = median_interval([draw.lognormvariate(0, 0.1) for _ in range(9)]) or (0, 0)
        hits += low <= 1.0 <= high
    assert 0.94 < hits / 500 < 0.98  # 96.1 per cent: 1 - 2 x (1 + 9) / 2^9


def test_paired_ratio_sees_through_a_drift_that_both_sides_share() -> None:
    draw = np.random.default_rng(2)
    machine = np.exp(np.linspace(0, 1, 40))  # the machine gets 2.7 times slower meanwhile
    a = machine * 1.05 * draw.lognormal(0, 0.01, 40)
    b = machine * draw.lognormal(0, 0.01, 40)
    ratio = paired_ratio(a.tolist(), b.tolist())
    assert ratio.low < 1.05 < ratio.high
    assert ratio.high - ratio.low < 0.02
    assert ratio.shows_difference
    assert ratio.num_pairs == 40


def test_paired_ratio_of_equals_shows_no_difference() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.lognormal(0, 0.05, 30).tolist(), draw.lognormal(0, 0.05, 30).tolist()
    assert not paired_ratio(a, b).shows_difference
    same = paired_ratio([2.0, 2.0, 2.0], [2.0, 2.0, 2.0])
    assert (same.ratio, same.low, same.high, same.shows_difference) == (1, 1, 1, False)


@pytest.mark.parametrize("num_pairs", [3, 8, 12])
def test_paired_ratio_tells_equals_apart_in_5_of_100_only(num_pairs: int) -> None:
    draw = np.random.default_rng(num_pairs)
    false_alarms = 0
    for _ in range(2000):
        machine = draw.lognormal(0, 0.3, num_pairs)
        a, b = (machine * draw.lognormal(0, 0.05, num_pairs) for _ in range(2))
        false_alarms += paired_ratio(a.tolist(), b.tolist()).shows_difference
    assert 0.04 < false_alarms / 2000 < 0.06


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([], [])])
def test_paired_ratio_refuses_what_is_no_pair(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        paired_ratio(a, b)
