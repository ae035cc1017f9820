"""What a reader should know beside a run's figures. None of it changes them. Pure."""

from collections.abc import Iterator, Sequence

from harness.facts import RunFacts
from harness.roof import Roof
from harness.specs.analysis import FailedRequest, RequestFigures
from harness.specs.engine import EngineReport
from harness.stats import median
from harness.units import ms, percent

DRIFT_WORTH_A_WARNING_FRAC = 0.10
SLOW_FIRST_REPEAT = 1.5
DECLARED_TOLERANCE_FRAC = 0.01
"""Norms are no backend's."""


def run_warnings(
    facts: RunFacts, requests: Sequence[RequestFigures], roof: Roof, batch: int, failed: Sequence[FailedRequest]
) -> list[str]:  # fmt: skip
    """What a reader should know beside the figures; none of it changes them."""
    warnings = [*_request_warnings(facts, requests, failed)]
    if roof.drift_frac is not None and abs(roof.drift_frac) > DRIFT_WORTH_A_WARNING_FRAC:
        warnings.append(f"the probe moved by {percent(roof.drift_frac)} from the first reading to the last")
    warnings += _roof_warnings(facts)
    if late := facts.engine.late_compilations:
        warnings.append(f"the server compiled after it was ready, {len(late)} lines of its log: {late[0]}")
    if facts.probe is not None and facts.probe.method == "torch-reduction":
        warnings.append("no compiler: the roof is a torch reduction's, so utilization may read too high")
    if facts.probe is not None and facts.device.last_level_cache_bytes is None:
        warnings.append("the size of the last-level cache is not known: cache residency was not checked")
    if (declared := _undeclared_difference(facts, batch)) is not None:
        warnings.append(declared)
    return [*warnings, *_count_warnings(facts.engine), *fallback_lines(facts.engine)]


def _count_warnings(report: EngineReport) -> list[str]:
    """A selection that ran less often than the answers took steps, by its own counters."""
    counted, answered = report.counted_steps, report.answered_steps
    if counted is None or answered is None or counted >= answered:
        return []
    return [f"the selection ran in every layer in {counted} of {answered} decode steps, by its own counters"]


def fallback_lines(report: EngineReport) -> list[str]:
    """What was asked for and did not run, with what ran instead and why; roles that share all of it stand together."""
    roles: dict[tuple[str, str], dict[str, None]] = {}
    for op in report.ops:
        if op.fallback_from:
            what = f"{op.fallback_from} can't, {op.backend} ran: {op.fallback_reason}"
            roles.setdefault((op.op, f"({op.phase}): {what}"), {})[op.role] = None
    return [f"{op} {'/'.join(of)} {rest}" for (op, rest), of in roles.items()]


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


def _request_warnings(
    facts: RunFacts, requests: Sequence[RequestFigures], failed: Sequence[FailedRequest]
) -> Iterator[str]:  # fmt: skip
    """Of requests that failed, stood out, or whose tokens were not told one by one."""
    if failed:
        share = f"{len(failed)} of {len(requests) + len(failed)} requests failed and are in no figure"
        yield f"{share}; repeat {failed[0].repeat}: {failed[0].reason}"
    for name, times in (("TPOT", [r.tpot_s for r in requests]), ("TTFT", [r.ttft_s for r in requests])):
        if (times_over := _first_over_others(times)) is not None:
            first = requests[0].repeat
            yield f"repeat {first} took {times_over:.1f} times the others' {name}: raise workload.warmup_tokens"
    yield from _token_warnings(requests)
    prompts = facts.config.workload.prompts
    if prompts is not None and len({*prompts}) < len(requests) and any(r.connect_s is not None for r in requests):
        yield f"{len(requests)} requests share {len({*prompts})} prompts: a prefix cache would flatter the later ones"


def _first_over_others(times: Sequence[float | None]) -> float | None:
    """How many times the others' median the first repeat took, where that is an outlier."""
    others = median([time for time in times[1:] if time is not None])
    if not times or times[0] is None or others is None or times[0] <= SLOW_FIRST_REPEAT * others:
        return None
    return times[0] / others


def _token_warnings(requests: Sequence[RequestFigures]) -> Iterator[str]:
    for r in requests:
        if r.token_source in ("usage", "chunks"):
            yield (
                f"the server does not tell how many tokens a chunk carries: repeat {r.repeat} has {r.num_output_tokens}"
                f" tokens by its {r.token_source} in {r.num_chunks} chunks; ITL is between chunks"
            )
            break
    many = [r for r in requests if r.most_tokens_a_chunk is not None and r.most_tokens_a_chunk > 1]
    if many and many[0].token_source in ("ids", "running usage"):
        tpot = ms(many[0].tpot_s)
        yield f"chunks carry up to {many[0].most_tokens_a_chunk} tokens: ITL is between chunks; TPOT, {tpot}, a token's"
    for r in requests:
        if r.usage_prompt_tokens is not None and r.usage_prompt_tokens != r.num_prompt_tokens:
            said = r.usage_prompt_tokens
            yield f"repeat {r.repeat}: {r.num_prompt_tokens} prompt tokens were sent, the server's usage says {said}"
            break
    for r in requests:
        if r.usage_output_tokens is not None and r.usage_output_tokens != r.num_output_tokens:
            said = r.usage_output_tokens
            yield f"repeat {r.repeat}: {r.num_output_tokens} tokens came, the server's usage says {said}"
            break
