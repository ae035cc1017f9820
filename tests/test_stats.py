"""Statistics: known answers, and intervals that cover as often as they say."""

import math
import random

import numpy as np
import pytest

from harness.stats import (
    mean_interval,
    median,
    median_interval,
    paired_ratio,
    percentile,
    relative_fit,
    slowdown_fit,
)


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


def test_a_relative_fit_by_hand() -> None:
    """target = c x row, rows 1, 1, 2 and targets 2, 4, 4: with r = 1/2, 1/4, 1/2 of relative size, c = sum r / sum r^2.

    c = 1.25 / 0.5625 = 20/9; the errors 1 - c r are -1/9, 4/9 and -1/9, and two degrees of freedom are left.
    """
    fit = relative_fit([[1.0], [1.0], [2.0]], [2.0, 4.0, 4.0])
    assert fit is not None
    assert fit.coefficients == pytest.approx((20 / 9,))
    assert fit.residual_frac == pytest.approx(math.sqrt(18 / 81 / 2))
    half = 4.30265 * fit.residual_frac / math.sqrt(0.5625)
    assert fit.intervals[0] == pytest.approx((20 / 9 - half, 20 / 9 + half), rel=1e-5)
    wider = relative_fit([[1.0], [1.0], [2.0]], [2.0, 4.0, 4.0], others=1)
    assert wider is not None
    assert wider.residual_frac == pytest.approx(math.sqrt(18 / 81)), "one degree of freedom less"
    narrow = relative_fit([[1.0], [1.0], [2.0]], [2.0, 4.0, 4.0], confidence=0.5)
    assert narrow is not None and narrow.intervals[0][0] > fit.intervals[0][0]


def test_a_relative_fit_finds_coefficients_of_very_different_sizes() -> None:
    rows = [[1.0, n, n * n] for n in (64.0, 512.0, 4096.0, 32_768.0)]
    fit = relative_fit(rows, [0.05 + 1e-4 * n + 1e-9 * n * n for _, n, _ in rows])
    assert fit is not None
    assert fit.coefficients == pytest.approx((0.05, 1e-4, 1e-9), rel=1e-6)
    assert fit.residual_frac < 1e-9


def test_errs_by_factors_and_not_by_the_longest() -> None:
    """A long target is a tenth too long: absolute errors would turn the whole line to it."""
    rows = [[1.0, float(n)] for n in (1, 2, 4, 8, 16, 1000)]
    targets = [1.0 + n for _, n in rows]
    fit = relative_fit(rows, [*targets[:-1], 1.1 * targets[-1]])
    assert fit is not None
    assert fit.coefficients == pytest.approx((1.0, 1.0), rel=0.1)


def test_intervals_of_a_relative_fit_cover_95_of_100() -> None:
    draw = np.random.default_rng(5)
    truth, lengths = (0.02, 1e-4, 2e-8), [128.0, 512.0, 2048.0] * 4
    hits = np.zeros(3)
    for _ in range(400):
        rows = [[1.0, n, n * n] for n in lengths]
        targets = [sum(c * x for c, x in zip(truth, row, strict=True)) * (1 + draw.normal(0, 0.03)) for row in rows]
        fit = relative_fit(rows, targets)
        assert fit is not None
        hits += [low <= c <= high for c, (low, high) in zip(truth, fit.intervals, strict=True)]
    assert all(0.92 <= share <= 0.98 for share in hits / 400)


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 2.0], [1.0, 3.0]],
        [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0]],
        [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]],
        [[1.0, 0.0]],
    ],
    ids=["as many rows as coefficients", "one column a multiple of the other", "a column of zeros", "one row"],
)
def test_rows_that_cannot_carry_a_fit_have_none(rows: list[list[float]]) -> None:
    assert relative_fit(rows, [1.0, 2.0, 3.0, 4.0][: len(rows)]) is None


def test_others_that_were_fitted_before_need_rows_too() -> None:
    rows, targets = [[1.0], [2.0], [3.0]], [1.0, 2.1, 2.9]
    assert relative_fit(rows, targets, others=1) is not None
    assert relative_fit(rows, targets, others=2) is None


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.7, 1.0])
def test_how_much_of_a_target_follows_a_slowdown(exponent: float) -> None:
    slowdowns = [1.0, 1.5, 0.8, 1.2, 0.9, 2.0, 1.1, 0.7]
    rows = [[1.0, float(n)] for n in (1, 2, 4, 8) * 2]
    targets = [(3.0 + 2.0 * row[1]) * s**exponent for row, s in zip(rows, slowdowns, strict=True)]
    fit, found = slowdown_fit(rows, targets, slowdowns)
    assert fit is not None
    assert found == pytest.approx(exponent, abs=1e-3)
    assert fit.coefficients == pytest.approx((3.0, 2.0), rel=2e-3)


def test_a_slowdown_that_is_the_same_for_all_is_none() -> None:
    rows, targets = [[1.0], [2.0], [3.0]], [1.0, 2.1, 2.9]
    assert slowdown_fit(rows, targets, [1.3] * 3) == (relative_fit(rows, targets), 0.0)


@pytest.mark.filterwarnings("error")
def test_the_exponent_takes_a_degree_of_freedom() -> None:
    rows = [[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]]
    assert slowdown_fit(rows, [2.0, 3.1, 5.2], [1.0, 1.1, 0.9])[0] is None
    assert slowdown_fit(rows, [2.0, 3.1, 5.2], [1.0, 1.0, 1.0])[0] is not None
    assert slowdown_fit(rows[:2], [2.0, 3.1], [1.0, 1.1])[0] is None
