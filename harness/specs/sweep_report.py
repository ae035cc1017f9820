"""What a sweep found: each value's figures as those of a run, and what all of them show together."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from harness.specs.analysis import Analysis
from harness.specs.base import Frozen
from harness.specs.sweep import SweepKey

Interval = tuple[float, float]
"""95 per cent."""


class SweepPoint(Frozen):
    """One value."""

    value: PositiveInt
    analysis: Analysis


class TtftFit(Frozen):
    """TTFT = a + b n + c n^2 over prompts of n tokens, by least squares of relative errors, at the run's median peak of
    matrix products."""

    fixed_s: float
    """a"""
    fixed_interval_s: Interval
    per_token_s: float
    """b"""
    per_token_interval_s: Interval
    per_token_squared_s: float
    """c"""
    per_token_squared_interval_s: Interval
    residual_frac: NonNegativeFloat
    """Root mean square of the relative errors."""
    peak_exponent: NonNegativeFloat
    """At another peak a prompt takes (median peak / peak) to this power as long: 0 where it does not matter."""
    longest: PositiveInt
    quadratic_time_frac: float
    """c n^2 over the fitted TTFT of the longest prompt."""
    quadratic_time_interval_frac: Interval
    quadratic_flop_frac: NonNegativeFloat
    """Attention's share of that prompt's FLOP: what the share of time would be if all FLOP took the same time."""


class Split(Frozen):
    """A decode step's time in two: step = (cache bytes / attention_util + all other bytes / linear_util) / roof.

    What grows with the context is the attention path's; the linear path has all else, host and elementwise included.
    """

    linear_util_frac: PositiveFloat
    linear_interval_frac: Interval
    attention_util_frac: PositiveFloat
    attention_interval_frac: Interval
    num_requests: PositiveInt
    residual_frac: NonNegativeFloat
    """Root mean square of the relative errors of a request's mean step."""
    largest_cache_frac: PositiveFloat
    """Part of a step's bytes that is cache, at the longest context."""


class Knee(Frozen):
    """Where a growing batch leaves the memory wall."""

    measured_batch: PositiveFloat
    """Where utilization of the memory wall falls to 0.9 of the smallest batch's, between measured batches by a straight
    line over the batch's logarithm."""
    predicted_batch: PositiveInt | None
    """The largest batch whose FLOP over the peak take no longer than its bytes over the roof; null where there is
    none."""
    predicted_reason: str | None
    ridge_flop_per_byte: PositiveFloat | None
    flop_per_byte_at_knee: PositiveFloat
    """Of a step of the measured batch."""


class SweepReport(Frozen):
    """All of it. A fit that the values can't carry is null, with the reason."""

    over: SweepKey
    points: tuple[SweepPoint, ...]
    ttft_fit: TtftFit | None = None
    ttft_fit_reason: str | None = None
    split: Split | None = None
    split_reason: str | None = None
    knee: Knee | None = None
    knee_reason: str | None = None
    fit_method: Literal["least squares of relative errors, Student's t"] = (
        "least squares of relative errors, Student's t"
    )
