"""A sweep's figures: each value analysed as a run of its own, and what all values show together. Pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from harness.analysis import analyse
from harness.batching import largest_batch_memory_bound
from harness.facts import RunFacts
from harness.prefill import peaks_around
from harness.repeats import Repeat, finished_repeats
from harness.roof import find_roof
from harness.roofline import ridge_flop_per_byte
from harness.specs.analysis import RequestFigures
from harness.specs.event import Event
from harness.specs.sweep import Sweep
from harness.specs.sweep_report import Knee, SweepPoint, SweepReport, TtftFit
from harness.split import split_paths
from harness.stats import median, slowdown_fit
from harness.traffic import prompt_flop

MIN_LENGTHS, MIN_LENGTH_SPAN = 3, 4
KNEE_FRAC = 0.9
"""Of the smallest batch's utilization of the memory wall."""


def analyse_sweep(
    facts: RunFacts, sweep: Sweep, events: Sequence[Event]
) -> tuple[tuple[RequestFigures, ...], SweepReport]:
    """Every request's figures and the report. A value of which no request was finished has no point."""
    repeats = finished_repeats(events)
    by_value: dict[int, set[int]] = {}
    for repeat in repeats:
        by_value.setdefault(_value(sweep, repeat), set()).add(repeat.send.repeat)
    points: list[SweepPoint] = []
    requests: list[RequestFigures] = []
    for value, numbers in sorted(by_value.items()):
        figures, analysis = analyse(facts, [event for event in events if _belongs(event, numbers)])
        points.append(SweepPoint(value=value, analysis=analysis))
        requests += figures
    report = _fits(facts, sweep, events, repeats, points)
    return tuple(sorted(requests, key=lambda figures: figures.repeat)), report


def _value(sweep: Sweep, repeat: Repeat) -> int:
    return repeat.send.batch if sweep.over == "batch" else repeat.send.num_prompt_tokens


def _belongs(event: Event, numbers: set[int]) -> bool:
    """To one of these repeats, or to the whole run."""
    return getattr(event, "repeat", None) is None or event.repeat in numbers  # type: ignore[union-attr]


def _fits(
    facts: RunFacts, sweep: Sweep, events: Sequence[Event], repeats: Sequence[Repeat], points: Sequence[SweepPoint]
) -> SweepReport:
    report = SweepReport(over=sweep.over, points=tuple(points))
    if sweep.over == "batch":
        knee, reason = _knee(facts, points)
        return report.model_copy(update={"knee": knee, "knee_reason": reason})
    split, why_no_split = split_paths(repeats, facts.traffic, find_roof(events))
    ttft_fit, why_no_fit = _ttft_fit(facts, repeats, peaks_around(events))
    return report.model_copy(
        update={
            "split": split, "split_reason": why_no_split, "ttft_fit": ttft_fit, "ttft_fit_reason": why_no_fit,
        }
    )  # fmt: skip


def _ttft_fit(
    facts: RunFacts, repeats: Sequence[Repeat], peaks: Mapping[int, float]
) -> tuple[TtftFit | None, str | None]:
    """(the fit, why there is none). The peak around each prompt is a covariate: cores are shared with neighbours, who
    slow down a prompt and the large products around it."""
    if not repeats:
        return None, "no request came to its end"
    prompts = [r for r in repeats if r.send.prompt_computed and r.chunks]
    lengths = sorted({r.send.num_prompt_tokens for r in prompts})
    if not lengths:
        return None, "no prompt was computed: sweep over input_tokens"
    if len(lengths) < MIN_LENGTHS or lengths[-1] < MIN_LENGTH_SPAN * lengths[0]:
        found = f"{len(lengths)} lengths, {lengths[0]} to {lengths[-1]}"
        return None, f"{found}: at least {MIN_LENGTHS} over {MIN_LENGTH_SPAN} times are needed"
    middle = median(list(peaks.values())) or 1.0
    slowdowns = [middle / peaks.get(r.send.repeat, middle) for r in prompts]
    rows = [(1.0, float(r.send.num_prompt_tokens), float(r.send.num_prompt_tokens**2)) for r in prompts]
    fit, exponent = slowdown_fit(rows, [r.ttft_s for r in prompts], slowdowns)
    if fit is None:
        return None, "too few requests: raise workload.repeats"
    longest, (a, b, c) = lengths[-1], fit.coefficients
    fitted_s = a + b * longest + c * longest**2
    low, high = (end * longest**2 / fitted_s for end in fit.intervals[2])
    flop = prompt_flop(facts.model, longest)
    return TtftFit(
        fixed_s=a, fixed_interval_s=fit.intervals[0],
        per_token_s=b, per_token_interval_s=fit.intervals[1],
        per_token_squared_s=c, per_token_squared_interval_s=fit.intervals[2],
        residual_frac=fit.residual_frac, peak_exponent=exponent, longest=longest,
        quadratic_time_frac=c * longest**2 / fitted_s,
        quadratic_time_interval_frac=(low, high), quadratic_flop_frac=flop.attention / sum(flop),
    ), None  # fmt: skip


def _knee(facts: RunFacts, points: Sequence[SweepPoint]) -> tuple[Knee | None, str | None]:
    """(where the batch leaves the memory wall, why that is not known)."""
    utils = [(point.value, _memory_util(point)) for point in points]
    known = [(batch, util) for batch, util in utils if util is not None]
    if len(known) < 2:
        return None, "fewer than two batches have a roof"
    limit = KNEE_FRAC * known[0][1]
    crossing = next((pair for pair in pairwise(known) if pair[1][1] < limit), None)
    if crossing is None:
        return None, f"batch {known[-1][0]} is still at the memory wall: sweep to larger ones"
    (before, util_before), (after, util_after) = crossing
    part = (util_before - limit) / (util_before - util_after)
    batch = math.exp(math.log(before) + part * math.log(after / before))
    return _knee_at(facts, batch, next(point for point in points if point.value == before)), None


def _knee_at(facts: RunFacts, batch: float, before: SweepPoint) -> Knee:
    """`before`: the last measured batch that was still at the wall."""
    analysis, whole = before.analysis, round(batch)
    context, roof = round(_mean_context(before)), analysis.roof_read_bytes_per_s or 0.0
    predicted, reason = largest_batch_memory_bound(facts.traffic, context, roof, facts.peak_flop_per_s)
    peak = facts.peak_flop_per_s
    return Knee(
        measured_batch=batch,
        predicted_batch=predicted,
        predicted_reason=reason,
        ridge_flop_per_byte=None if peak is None else ridge_flop_per_byte(peak, roof),
        flop_per_byte_at_knee=facts.traffic.step_flop(context, whole) / facts.traffic.step_bytes(context, whole),
    )


def _memory_util(point: SweepPoint) -> float | None:
    """Bytes over roof over the time of a step."""
    a = point.analysis
    if a.step_bytes is None or a.roof_read_bytes_per_s is None or a.tpot_s is None:
        return None
    return a.step_bytes / a.roof_read_bytes_per_s / a.tpot_s


def _mean_context(point: SweepPoint) -> float:
    """Of a decode step of the point's requests."""
    return (point.analysis.input_tokens or 0) + (point.analysis.output_tokens or 0) / 2
