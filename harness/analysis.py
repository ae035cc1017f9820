"""The one row that a run comes down to: every figure with its definition's name, and the verdict."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import harness
from harness.facts import RunFacts
from harness.figures import cpu_wait_frac, last_evidence, request_figures, utilization
from harness.prefill import main_wall, prefill_row, time_shares
from harness.repeats import Repeat, batch_of, failed_requests, finished_repeats
from harness.roof import Roof, find_roof
from harness.roofline import Wall, frac
from harness.run_warnings import run_warnings
from harness.specs.analysis import Analysis, FailedRequest, RequestFigures
from harness.specs.event import Event
from harness.specs.run import RunConfig
from harness.stats import median, percentile
from harness.verdict import Measured, judge

MAX_HELD_FRAC, MIN_HELD = 0.05, 4
"""Of an answer's steps: by so much TPOT would be too small; fewer tokens are what a busy reader finds together."""


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
    row["failed_requests"] = tuple(
        FailedRequest(repeat=event.repeat, reason=event.what) for event in failed_requests(events)
    )
    row["warnings"] = tuple(run_warnings(facts, requests, roof, row["batch"], row["failed_requests"]))
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
        **_official(requests, repeats),
        "itl_s": median(gaps),
        "itl_p99_s": percentile(gaps, 99),
        "throughput_tokens_per_s": median(rates),
        "prefill_time_frac": frac(sum(ttfts), total_s),
        "decode_time_frac": frac(decode_s, total_s),
    }


def _official(requests: Sequence[RequestFigures], repeats: Sequence[Repeat]) -> dict[str, Any]:
    """The same requests by the definitions of `vllm bench serve` (vllm/benchmarks/serve.py, 0.32)."""
    official = [r.official for r in requests if r.official]
    served = [repeat for repeat in repeats if repeat.send.connect_s is not None]
    gaps = [b - a for r in served for a, b in pairwise(r.choice_times_s)]
    tokens = [r.usage_output_tokens for r in requests if r.official and r.usage_output_tokens is not None]
    all_tell = len(tokens) == len(official)
    return {
        "official_ttft_s": median([figures.ttft_s for figures in official]),
        "official_tpot_s": median([figures.tpot_s for figures in official if figures.tpot_s]),
        "official_itl_s": median(gaps),
        "official_itl_p99_s": percentile(gaps, 99),
        "official_throughput_tokens_per_s": frac(sum(tokens), sum(f.latency_s for f in official)) if all_tell else None,
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
    for repeat in repeats:
        if repeat.usage is not None and repeat.usage.cached_tokens:
            found = f"{repeat.usage.cached_tokens} of its {repeat.send.num_prompt_tokens} prompt tokens in a cache"
            return f"repeat {repeat.send.repeat} found {found}: its time is not that of a prompt"
    for repeat in repeats:
        if repeat.num_held_tokens >= MIN_HELD and repeat.num_held_tokens > MAX_HELD_FRAC * (repeat.num_tokens - 1):
            found = f"{repeat.num_held_tokens + 1} of its {repeat.num_tokens} tokens at once at the start"
            return (
                f"repeat {repeat.send.repeat} got {found}: they were held back, and the time of a token can't be told"
            )
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
