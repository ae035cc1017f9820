"""The one row that a run comes down to: every figure with its definition's name, and the verdict."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import harness
from harness.facts import RunFacts
from harness.figures import cpu_wait_frac, last_evidence, request_figures, utilization
from harness.prefill import main_wall, prefill_row, time_shares
from harness.repeats import Repeat, batch_of, finished_repeats
from harness.roof import Roof, find_roof
from harness.roofline import Wall, frac
from harness.specs.analysis import Analysis, RequestFigures
from harness.specs.event import Event
from harness.specs.run import RunConfig
from harness.stats import median, percentile
from harness.units import percent
from harness.verdict import Measured, judge

DRIFT_WORTH_A_WARNING_FRAC = 0.10
SLOW_FIRST_REPEAT = 1.5
DECLARED_TOLERANCE_FRAC = 0.01
"""Norms are no backend's."""


def analyse(facts: RunFacts, events: Sequence[Event]) -> tuple[tuple[RequestFigures, ...], Analysis]:
    """Every repeat's figures and the run's row, from the events alone and what is known beforehand."""
    repeats, roof = finished_repeats(events), find_roof(events)
    facts = _of_batch(facts, batch_of(repeats))
    requests = tuple(request_figures(repeat, facts.traffic, roof, facts.peak_flop_per_s) for repeat in repeats)
    work = _work(facts, repeats)
    row = _identity(facts, requests) | _times(requests, repeats) | work
    row |= _judgement(facts, repeats, requests, roof, events, work["step_bytes"])
    row |= prefill_row(facts, repeats, row["roof_read_bytes_per_s"], row["cpu_wait_frac"], events)
    shares = (row["input_tokens"], row["prefill_time_frac"], row["decode_time_frac"], last_evidence(events))
    row["time_shares"] = time_shares(facts.model, *shares)
    row["batch"] = batch_of(repeats)
    row["warnings"] = tuple(_warnings(facts, requests, roof, row["batch"]))
    return requests, Analysis.model_validate(row)


def _of_batch(facts: RunFacts, batch: int) -> RunFacts:
    """Of the engine's choices those of steps of this batch: in a sweep others may have had other backends."""
    ops = tuple(op for op in facts.engine.ops if op.phase == "prefill" or op.batch == batch)
    return replace(facts, engine=facts.engine.model_copy(update={"ops": ops}))


def _identity(facts: RunFacts, requests: Sequence[RequestFigures]) -> dict[str, Any]:
    kernels = {f"{op.op}.{op.phase}.{op.role}": op.backend for op in facts.engine.ops}
    if facts.engine.elementwise is not None:
        kernels["elementwise"] = facts.engine.elementwise
    return {
        "run_id": facts.run_id,
        "name": facts.config.name,
        "harness_version": harness.__version__,
        "model": facts.config.model,
        "precision": facts.engine.dtype,
        "hardware": facts.device.name,
        "engine": facts.engine.kind,
        "kernels": kernels,
        "num_repeats": len(requests),
        "input_tokens": _whole(median([r.num_prompt_tokens for r in requests])),
        "output_tokens": _whole(median([r.num_output_tokens for r in requests])),
    }


def _times(requests: Sequence[RequestFigures], repeats: Sequence[Repeat]) -> dict[str, Any]:
    ttfts = [r.ttft_s for r in requests if r.ttft_s is not None]
    tpots = [r.tpot_s for r in requests if r.tpot_s is not None]
    rates = [r.throughput_tokens_per_s for r in requests if r.throughput_tokens_per_s is not None]
    gaps = [b.time_s - a.time_s for r in repeats for a, b in zip(r.chunks, r.chunks[1:], strict=False)]
    decode_s = sum(repeat.decode_s for repeat in repeats)
    total_s = sum(ttfts) + decode_s if ttfts else None  # of a prompt that was not computed nobody knows the time
    return {
        "ttft_s": median(ttfts),
        "tpot_s": median(tpots),
        "tpot_p99_s": percentile(tpots, 99),
        "tpot_spread_s": max(tpots) - min(tpots) if tpots else None,
        "itl_s": median(gaps),
        "itl_p99_s": percentile(gaps, 99),
        "throughput_tokens_per_s": median(rates),
        "prefill_time_frac": frac(sum(ttfts), total_s),
        "decode_time_frac": frac(decode_s, total_s),
    }


def _work(facts: RunFacts, repeats: Sequence[Repeat]) -> dict[str, Any]:
    """Bytes and FLOP, and the rates at which they were done."""
    traffic = facts.traffic
    steps = [(context, repeat.send.batch) for repeat in repeats for context in repeat.step_contexts()]
    step_bytes = frac(sum(traffic.step_bytes(*step) for step in steps), len(steps))
    step_flop = frac(sum(traffic.step_flop(*step) for step in steps), len(steps))
    step_s = _mean_step_s(repeats)
    return {
        **traffic.model_dump(include=_TRAFFIC_KEYS),
        "step_bytes": step_bytes,
        "step_flop": step_flop,
        "datasheet_bytes_per_s": facts.datasheet_bytes_per_s,
        "achieved_bytes_per_s": frac(step_bytes, step_s),
        "mfu_frac": frac(frac(step_flop, step_s), facts.peak_flop_per_s),
    }


def _judgement(
    facts: RunFacts,
    repeats: Sequence[Repeat],
    requests: Sequence[RequestFigures],
    roof: Roof,
    events: Sequence[Event],
    step_bytes: float | None,
) -> dict[str, Any]:
    """Roof, utilization and the verdict that they lead to."""
    evidence, waited = last_evidence(events), cpu_wait_frac(events)
    util, interval, method = utilization(repeats, facts.traffic, roof, facts.peak_flop_per_s)
    bound = _bound(facts, repeats, roof)
    roof_rate = median([r.roof_read_bytes_per_s for r in requests if r.roof_read_bytes_per_s is not None])
    step_s = _mean_step_s(repeats)
    verdict = judge(
        Measured(
            util_frac=util,
            interval_frac=interval,
            roof_read_bytes_per_s=roof_rate,
            roof_uncertainty_frac=roof.uncertainty_frac,
            num_decode_steps=min((repeat.num_decode_steps for repeat in repeats), default=0),
            bound=bound,
            working_set_bytes=step_bytes or 0.0,
            cache_bytes=facts.device.last_level_cache_bytes,
            probe_buffer_bytes=facts.probe.reading_buffer_bytes if facts.probe else None,
            evidence=evidence,
            cpu_wait_frac=waited,
            fault=_fault(facts.config, repeats),
        )
    )
    return {
        **verdict.model_dump(),
        "util_frac": util,
        "util_interval_frac": interval,
        "util_interval_method": method,
        "bound": bound,
        "floor_s": None if util is None or step_s is None else util * step_s,
        "roof_read_bytes_per_s": roof_rate,
        "roof_source": roof.source,
        "probe_read_bytes_per_s": roof.probe_read_bytes_per_s,
        "probe_drift_frac": roof.drift_frac,
        "roof_uncertainty_frac": roof.uncertainty_frac,
        "outside_kernels_frac": frac(evidence.outside_kernels_s, evidence.step_s) if evidence else None,
        "cpu_wait_frac": waited,
        "timeline_gaps_s": evidence.timeline_gaps_s if evidence else None,
    }


def _bound(facts: RunFacts, repeats: Sequence[Repeat], roof: Roof) -> Wall | None:
    """The wall of all decode steps together."""
    found = [roof.floor(repeat, facts.traffic, facts.peak_flop_per_s) for repeat in repeats]
    floors = [floor for floor in found if floor is not None and floor.compute_s is not None]
    return main_wall(floors) if floors else None


def _mean_step_s(repeats: Sequence[Repeat]) -> float | None:
    """Over all decode steps of the run."""
    return frac(sum(repeat.decode_s for repeat in repeats), sum(repeat.num_decode_steps for repeat in repeats))


_TRAFFIC_KEYS = {
    "bytes_source", "tensors_source", "weight_read_bytes", "embedding_row_bytes", "kv_bytes_per_context_token",
    "state_read_bytes", "state_write_bytes",
}  # fmt: skip


def _fault(config: RunConfig, repeats: Sequence[Repeat]) -> str | None:
    """What makes the measurement itself wrong."""
    if not repeats:
        return "no request came to its end"
    wanted = config.workload.output_tokens
    if config.workload.mode == "fixed-length":
        for repeat in repeats:
            if repeat.num_tokens != wanted:
                return f"repeat {repeat.send.repeat} gave {repeat.num_tokens} tokens instead of the fixed {wanted}"
    return None


def _warnings(facts: RunFacts, requests: Sequence[RequestFigures], roof: Roof, batch: int) -> list[str]:
    """What a reader should know beside the figures; none of it changes them."""
    warnings = []
    if roof.drift_frac is not None and abs(roof.drift_frac) > DRIFT_WORTH_A_WARNING_FRAC:
        warnings.append(f"the probe moved by {percent(roof.drift_frac)} from the first reading to the last")
    warnings += _roof_warnings(facts)
    if facts.probe is not None and facts.probe.method == "torch-reduction":
        warnings.append("no compiler: the roof is a torch reduction's, so utilization may read too high")
    tpots = [r.tpot_s for r in requests if r.tpot_s is not None]
    others = median(tpots[1:])
    if others is not None and tpots[0] > SLOW_FIRST_REPEAT * others:
        warnings.append(f"repeat 0 took {tpots[0] / others:.1f} times the others' TPOT: raise workload.warmup_tokens")
    if facts.device.last_level_cache_bytes is None:
        warnings.append("the size of the last-level cache is not known: cache residency was not checked")
    if (declared := _undeclared_difference(facts, batch)) is not None:
        warnings.append(declared)
    warnings += [
        f"{op.op} {op.role} ({op.phase}): {op.fallback_from} can't, {op.backend} ran: {op.fallback_reason}"
        for op in facts.engine.ops
        if op.fallback_from
    ]
    return warnings


def _roof_warnings(facts: RunFacts) -> list[str]:
    """What makes the roof another one than the machine's: a small buffer, fewer threads than cores."""
    warnings, probe, device = [], facts.probe, facts.device
    cache = device.last_level_cache_bytes
    at_working_set = probe is not None and probe.working_set_read_bytes_per_s is not None
    if probe is not None and cache is not None and not at_working_set and probe.reading_buffer_bytes < 4 * cache:
        warnings.append(
            f"the probe read {probe.reading_buffer_bytes:,} B, less than four caches: the roof may be too high"
        )
    cores, threads = device.num_compute_units, facts.engine.num_threads
    if device.kind == "cpu" and cores is not None and threads is not None and threads < cores:
        warnings.append(f"engine and probe ran on {threads} of {cores} cores: the roof is that of {threads}")
    return warnings


def _undeclared_difference(facts: RunFacts, batch: int) -> str | None:
    """Backends say what their calls read: a name that promises 4 bits while bf16 is read shows here."""
    linears = [op for op in facts.engine.ops if op.op == "linear" and op.phase == "decode"]
    if not linears or any(op.read_bytes is None for op in linears):
        return None
    declared = sum((op.read_bytes or 0) * op.num_calls for op in linears)
    logical = facts.traffic.step_weight_bytes(batch)
    if abs(declared - logical) <= DECLARED_TOLERANCE_FRAC * logical:
        return None
    return f"backends declare {declared:,} B of weights a step, the model's shapes make {logical:,} B"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
