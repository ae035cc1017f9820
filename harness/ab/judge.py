"""Samples to rows: who is faster, by how much, and whether the data show it at all. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from harness.specs.ab import AbRow, Confirmation
from harness.stats import Ratio, half_width, paired_ratio

OUTRUN = 1.5
"""Times the fastest reading of the probe: what moves its operands faster than that does not move them. Readings err by
some per cent, and a pattern that suits the memory better than the probe's gains no more."""
Samples = Mapping[str, Sequence[float]]
"""Seconds a call by side's label and block."""


def is_settled(call_s: Samples, baseline: str, precision: float) -> bool:
    """Whether every side's ratio to the baseline is known to the precision. Without one to compare to: yes.

    It asks how wide intervals are and never where they lie, so that stopping favours nobody.
    """
    others = [name for name in call_s if name != baseline]
    if baseline not in call_s:
        return True
    ratios = [paired_ratio(call_s[baseline], call_s[name]) for name in others]
    return all(_is_known(ratio, precision) for ratio in ratios)


def _is_known(ratio: Ratio, precision: float) -> bool:
    return half_width((ratio.low, ratio.high)) <= precision


def judge_shape(
    rows: Sequence[AbRow], call_s: Samples, probe_rates: Sequence[float], baseline: str, precision: float,
    peak: float | None = None,
) -> list[AbRow]:  # fmt: skip
    """Complete the timed rows of one shape: rates, shares of probe and peak, ratio to the baseline, outcome.

    probe_rates: bytes per second that the probe read before each block and after the last; a block's is the mean of
    both; none without a probe. baseline: its row's label. precision: that rounds were to end at. peak: FLOP per second
    of matrix products around the shape.
    """
    roofs = [statistics.fmean(pair) for pair in pairwise(probe_rates)]
    timed = [_timed(row, call_s[row.label], roofs or None, peak) if row.label in call_s else row for row in rows]
    compared = [_compared(row, call_s, baseline, precision) for row in timed]
    return _ranked(compared, call_s, baseline)


def outrun(row: AbRow, calls_s: Sequence[float], probe_rates: Sequence[float]) -> str:
    """How a side is faster than memory can be, of operands that no cache holds; empty where it is not."""
    bytes_per_s = ((row.read_bytes or 0) + row.write_bytes) / statistics.median(calls_s)
    roof = max(probe_rates, default=0.0)
    if not roof or bytes_per_s <= OUTRUN * roof:
        return ""
    return (
        f"{bytes_per_s / 1e9:.3g} GB/s by its own word, {bytes_per_s / roof:.1f} times the probe's fastest reading: it"
        " does not read its operands, or not so much as it says"
    )


def confirmation(winner_s: Sequence[float], baseline_s: Sequence[float], precision: float) -> Confirmation:
    """What fresh samples of the winner and the baseline, block by block, say."""
    ratio = paired_ratio(baseline_s, winner_s)
    call_s, baseline_call_s = statistics.median(winner_s), statistics.median(baseline_s)
    return Confirmation(
        call_s=call_s, baseline_call_s=baseline_call_s, ratio_to_baseline=ratio.ratio,
        ratio_interval=(ratio.low, ratio.high), num_pairs=ratio.num_pairs,
        precision_reached=_is_known(ratio, precision),
        call_gain_s=call_s * (ratio.ratio - 1),
    )  # fmt: skip


def _timed(row: AbRow, calls_s: Sequence[float], roofs: Sequence[float] | None, peak: float | None) -> AbRow:
    median_s = statistics.median(calls_s)
    moved = (row.read_bytes or 0) + row.write_bytes
    shares = None if roofs is None else [moved / t / roof for t, roof in zip(calls_s, roofs, strict=True)]
    flop_per_s = None if row.flop is None else row.flop / median_s
    return row.model_copy(
        update={
            "call_s": median_s,
            "bytes_per_s": moved / median_s,
            "probe_frac": None if shares is None else statistics.median(shares),
            "flop_per_s": flop_per_s,
            "peak_frac": None if flop_per_s is None or peak is None else flop_per_s / peak,
        }
    )


def _compared(row: AbRow, call_s: Samples, baseline: str, precision: float) -> AbRow:
    if row.call_s is None or baseline not in call_s:
        return row
    ratio = paired_ratio(call_s[baseline], call_s[row.label])
    return row.model_copy(
        update={
            "ratio_to_baseline": ratio.ratio,
            "ratio_interval": (ratio.low, ratio.high),
            "num_pairs": ratio.num_pairs,
            "precision_reached": _is_known(ratio, precision),
        }
    )


def _ranked(rows: Sequence[AbRow], call_s: Samples, baseline: str) -> list[AbRow]:
    """The fastest is the winner only if every other is shown to be slower; who is not shown slower shares the place."""
    if len(call_s) < 2:
        return list(rows)
    best = min(call_s, key=lambda name: statistics.fmean(call_s[name]))
    slower = {
        name: (ratio := paired_ratio(call_s[name], call_s[best])).shows_difference and ratio.ratio > 1
        for name in call_s
        if name != best
    }

    def outcome(row: AbRow) -> str:
        if row.label not in call_s:
            return "-"
        if row.label == best:
            return "winner" if all(slower.values()) else "no difference shown"
        if not slower[row.label]:
            return "no difference shown"
        return "baseline" if row.label == baseline else "slower"

    return [row.model_copy(update={"outcome": outcome(row)}) for row in rows]
