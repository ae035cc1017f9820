"""The statistics behind the figures. Library routines throughout; what is ours is only which one is asked.

No outlier is ever dropped: one slow request decides a P99, and hiding it would hide the loss.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def percentile(values: Sequence[float], q: float) -> float | None:
    """numpy's linear method; q in per cent. Null for no values."""
    return float(np.percentile(values, q, method="linear")) if len(values) else None


def median(values: Sequence[float]) -> float | None:
    """The 50th percentile. Null for no values."""
    return percentile(values, 50)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean of positive values, on their logarithms: rates and ratios err by factors.

    Null for fewer than two values: one value says nothing of its spread.
    """
    if len(values) < 2:
        return None
    from scipy import stats

    logs = np.log(values)
    half = float(stats.t.ppf((1 + confidence) / 2, len(logs) - 1)) * float(np.std(logs, ddof=1)) / len(logs) ** 0.5
    center = float(np.mean(logs))
    return float(np.exp(center - half)), float(np.exp(center + half))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the median by order statistics: for any distribution, and one wild value does not stretch it.

    Of nine values it is the second smallest to the second largest. Fewer than 6 have no such interval: theirs is the
    whole range, which covers 1 - 2^(1 - n).
    """
    from scipy import stats

    if len(values) < 6:
        return min(values), max(values)
    found = stats.quantile_test(values, q=0, p=0.5).confidence_interval(confidence)
    return float(found.low), float(found.high)


def half_width(interval: tuple[float, float]) -> float:
    """Of an interval of factors: half of it in logarithms."""
    return math.log(interval[1] / interval[0]) / 2


@dataclass(frozen=True)
class Ratio:
    """How many times as long a takes as b, over pairs measured next to each other."""

    ratio: float
    low: float
    high: float
    num_pairs: int

    @property
    def shows_difference(self) -> bool:
        """False while the interval holds 1: `no difference shown`."""
        return not self.low <= 1.0 <= self.high


def paired_ratio(a_s: Sequence[float], b_s: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Geometric mean of a/b over pairs measured next to each other, with Student's t interval of the pairs' logarithms.

    Not a bootstrap: that of 8 pairs covers 90 per cent where it promises 95, and equal sides then show a difference
    in one A/B of ten. Raises ValueError for sides of different lengths or fewer than two pairs.
    """
    if len(a_s) != len(b_s) or len(a_s) < 2:
        raise ValueError(f"needs two sides of equal length, at least 2 pairs: got {len(a_s)} and {len(b_s)}")
    ratios = [a / b for a, b in zip(a_s, b_s, strict=True)]
    interval = mean_interval(ratios, confidence)
    assert interval is not None
    return Ratio(statistics.geometric_mean(ratios), *interval, len(ratios))


@dataclass(frozen=True)
class RelativeFit:
    """target = sum of coefficients times row, over many rows."""

    coefficients: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    """95 per cent by default, Student's t."""
    residual_frac: float
    """Root mean square of the relative errors, by degrees of freedom."""


def relative_fit(
    rows: Sequence[Sequence[float]], targets: Sequence[float], confidence: float = 0.95, others: int = 0
) -> RelativeFit | None:
    """Least squares of relative errors: times err by factors, so a long one must not outweigh all short ones.

    others: numbers that were fitted to the same targets beforehand. Null for fewer rows than all of them and one more,
    and for rows that do not tell the coefficients apart.
    """
    from scipy import stats

    scaled = np.asarray(rows, dtype=float) / np.asarray(targets, dtype=float)[:, None]
    scale = np.abs(scaled).max(axis=0)
    freedom = scaled.shape[0] - scaled.shape[1] - others
    if freedom < 1 or not scale.all() or np.linalg.matrix_rank(scaled / scale) < scaled.shape[1]:
        return None
    design = scaled / scale  # columns of one size: n^2 beside 1 would leave few digits
    solution, *_ = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)
    variance = float(np.sum((1 - design @ solution) ** 2)) / freedom
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * errors / scale
    found = solution / scale
    return RelativeFit(
        coefficients=tuple(map(float, found)),
        intervals=tuple(zip(map(float, found - half), map(float, found + half), strict=True)),
        residual_frac=math.sqrt(variance),
    )


def slowdown_fit(
    rows: Sequence[Sequence[float]], targets: Sequence[float], slowdowns: Sequence[float]
) -> tuple[RelativeFit | None, float]:
    """(fit, exponent): target = sum of coefficients times row, all times slowdown^exponent, the exponent 0 to 1.

    A slowdown that was measured beside the target errs, and not all of the target need follow it: the exponent says how
    much of it does. 0 where slowdowns explain nothing.
    """
    from scipy import optimize

    def fitted(exponent: float, others: int = 0) -> RelativeFit | None:
        scales = [slowdown**exponent for slowdown in slowdowns]
        scaled = [[scale * value for value in row] for scale, row in zip(scales, rows, strict=True)]
        return relative_fit(scaled, targets, others=others)

    def residual(exponent: float) -> float:
        fit = fitted(exponent)
        return math.inf if fit is None else fit.residual_frac

    if len(set(slowdowns)) < 2:
        return fitted(0.0), 0.0
    exponent = float(optimize.minimize_scalar(residual, bounds=(0, 1), method="bounded").x)
    return fitted(exponent, others=1), exponent
