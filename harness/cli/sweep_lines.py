"""A sweep as people read it: a row a value, and what all values show together."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.specs.analysis import Analysis
    from harness.specs.sweep_report import Interval, Knee, Split, SweepReport, TtftFit


def point_rows(report: "SweepReport") -> list[dict[str, str]]:
    """One row a value, with what this sweep is made for."""
    return [{report.over: f"{point.value:,}"} | _ROWS[report.over](point.analysis) for point in report.points]


def _decode_row(a: "Analysis") -> dict[str, str]:
    from harness.units import MISSING, ms

    util = MISSING if a.util_frac is None else f"{a.util_frac:.3f}"
    return {"TPOT": ms(a.tpot_s), "floor": ms(a.floor_s), "util.": util, "verdict": a.verdict}


def _batch_row(a: "Analysis") -> dict[str, str]:
    from harness.units import MISSING

    rate = a.throughput_tokens_per_s
    rate_text = MISSING if rate is None else f"{rate:.2f}"
    return {**_decode_row(a), "wall": a.bound or MISSING, "tokens/s": rate_text}


def _prompt_row(a: "Analysis") -> dict[str, str]:
    from harness.units import MISSING, ms, percent

    parts = [*(share.part for share in a.time_shares), MISSING, MISSING]
    return {
        "TTFT": ms(a.ttft_s),
        "floor": ms(a.prefill_floor_s),
        "prefill": a.prefill_verdict or MISSING,
        "MFU": percent(a.prefill_mfu_frac),
        "TPOT": ms(a.tpot_s),
        "decode": a.verdict,
        "bottleneck": parts[0],
        "second": parts[1],
    }


_ROWS = {"context": _decode_row, "batch": _batch_row, "input_tokens": _prompt_row}


def sweep_lines(report: "SweepReport") -> list[tuple[str, str]]:
    """What the values show together, or why they do not."""
    if report.over == "batch":
        return [("knee", knee_line(report.knee) if report.knee else f"not found: {report.knee_reason}")]
    fit = fit_line(report.ttft_fit) if report.ttft_fit else f"none: {report.ttft_fit_reason}"
    split = split_line(report.split) if report.split else f"none: {report.split_reason}"
    return [("TTFT fit", fit), ("split", split)]


def fit_line(fit: "TtftFit") -> str:
    from harness.units import percent

    low, high = fit.quadratic_time_interval_frac
    return (
        f"{fit.fixed_s * 1e3:.3g} ms + {fit.per_token_s * 1e6:.4g} us n + {fit.per_token_squared_s * 1e9:.4g} ns n^2;"
        f" at {fit.longest:,} tokens {percent(fit.quadratic_time_frac)} [{percent(low)}, {percent(high)}] is quadratic"
        f" ({percent(fit.quadratic_flop_frac)} of the FLOP); errs by {percent(fit.residual_frac)}"
    )


def split_line(split: "Split") -> str:
    from harness.units import percent

    return (
        f"linear path {_with(split.linear_util_frac, split.linear_interval_frac)}, attention path"
        f" {_with(split.attention_util_frac, split.attention_interval_frac)} of the roof; {split.num_requests}"
        f" requests, cache up to {percent(split.largest_cache_frac)} of a step's bytes;"
        f" errs by {percent(split.residual_frac)}"
    )


def _with(value: float, interval: "Interval") -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def knee_line(knee: "Knee") -> str:
    ridge = "not known" if knee.ridge_flop_per_byte is None else f"{knee.ridge_flop_per_byte:.1f} FLOP a byte"
    predicted = f"{knee.predicted_batch:,}" if knee.predicted_batch is not None else f"none: {knee.predicted_reason}"
    return (
        f"batch {knee.measured_batch:.1f}, at {knee.flop_per_byte_at_knee:.1f} FLOP a byte; the ridge is at {ridge},"
        f" so the walls alone would have it at batch {predicted}"
    )
