"""Samples to rows: who is faster, by how much, and whether the data show it at all. Pure."""

import statistics
from collections.abc import Mapping, Sequence

from harness.specs.ab import AbRow
from harness.stats import paired_ratio


def judge_shape(
    rows: Sequence[AbRow], call_s: Mapping[str, Sequence[float]], probe_rates: Sequence[float], baseline: str
) -> list[AbRow]:
    """Complete the timed rows of one shape: rate, share of the probe, ratio to the baseline, outcome.

    call_s: seconds a call by backend and block; probe_rates: bytes per second that the probe read, by block.
    """
    timed = [_timed(row, call_s[row.backend], probe_rates) if row.backend in call_s else row for row in rows]
    compared = [_compared(row, call_s, baseline) for row in timed]
    return _ranked(compared, call_s, baseline)


def _timed(row: AbRow, calls_s: Sequence[float], probe_rates: Sequence[float]) -> AbRow:
    median_s = statistics.median(calls_s)
    read_bytes = row.read_bytes or 0
    shares = [read_bytes / time_s / rate for time_s, rate in zip(calls_s, probe_rates, strict=True)]
    return row.model_copy(
        update={"call_s": median_s, "read_bytes_per_s": read_bytes / median_s, "probe_frac": statistics.median(shares)}
    )


def _compared(row: AbRow, call_s: Mapping[str, Sequence[float]], baseline: str) -> AbRow:
    if row.call_s is None or baseline not in call_s:
        return row
    ratio = paired_ratio(call_s[baseline], call_s[row.backend])
    gain_s = row.calls_per_token * row.call_s * (ratio.ratio - 1)
    return row.model_copy(
        update={
            "ratio_to_baseline": ratio.ratio,
            "ratio_interval": (ratio.low, ratio.high),
            "num_pairs": ratio.num_pairs,
            "token_gain_s": gain_s,
        }
    )


def _ranked(rows: Sequence[AbRow], call_s: Mapping[str, Sequence[float]], baseline: str) -> list[AbRow]:
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
        if row.backend not in call_s:
            return "-"
        if row.backend == best:
            return "winner" if all(slower.values()) else "no difference shown"
        if not slower[row.backend]:
            return "no difference shown"
        return "baseline" if row.backend == baseline else "slower"

    return [row.model_copy(update={"outcome": outcome(row)}) for row in rows]
