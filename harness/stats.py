"""The statistics behind the figures. Library routines throughout; what is ours is only which one is asked.

No outlier is ever dropped: one slow request decides a P99, and hiding it would hide the loss.
"""

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


def paired_ratio(a_s: Sequence[float], b_s: Sequence[float], seed: int = 0, confidence: float = 0.95) -> Ratio:
    """Geometric mean of a/b over pairs, with a bootstrap interval that resamples pairs, never sides.

    Raises ValueError for sides of different lengths or fewer than two pairs.
    """
    if len(a_s) != len(b_s) or len(a_s) < 2:
        raise ValueError(f"needs two sides of equal length, at least 2 pairs: got {len(a_s)} and {len(b_s)}")
    from scipy import stats

    logs = np.log(a_s) - np.log(b_s)
    center = float(np.mean(logs))
    if np.ptp(logs) == 0:  # the bootstrap of a constant is that constant; scipy answers NaN
        return Ratio(float(np.exp(center)), float(np.exp(center)), float(np.exp(center)), len(logs))
    interval = stats.bootstrap(
        (logs,),
        np.mean,
        confidence_level=confidence,
        n_resamples=4999,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Ratio(float(np.exp(center)), float(np.exp(interval.low)), float(np.exp(interval.high)), len(logs))
