"""From events to figures: pure, so that a record can be computed again from its samples, and tests can script time.

Definitions (n output tokens; t0 request sent, t1..tn token arrivals; docs/definitions.md):
  TTFT = t1 - t0        TPOT = (tn - t1) / (n - 1), null for n < 2        throughput = n / (tn - t0)
  utilization = sum over decode steps of floor_s(context) / sum of their measured times
"""

import math
from collections.abc import Iterable, Sequence

from harness.repeats import Repeat
from harness.roof import Roof
from harness.roofline import frac
from harness.specs.analysis import OfficialFigures, RequestFigures
from harness.specs.engine import Evidence
from harness.specs.event import ContentionEvent, Event, EvidenceEvent, TraceEvent
from harness.specs.step import DecodeTraffic
from harness.stats import half_width, mean_interval
from harness.units import percent


def request_figures(
    repeat: Repeat, traffic: DecodeTraffic, roof: Roof, peak_flop_per_s: float | None = None
) -> RequestFigures:
    """One repeat's figures; null where it has too few tokens or no roof, its prompt was not computed, or the clock did
    not move."""
    floor = roof.floor(repeat, traffic, peak_flop_per_s)
    n, sent = repeat.num_tokens, repeat.send
    first = repeat.chunks[0].time_s if n else None
    total_s = repeat.chunks[-1].time_s - sent.time_s if n else None
    return RequestFigures(
        repeat=sent.repeat,
        num_prompt_tokens=sent.num_prompt_tokens,
        num_output_tokens=n,
        ttft_s=None if first is None or not sent.prompt_computed else (first - sent.time_s) or None,
        tpot_s=frac(repeat.decode_s, n - 1) or None if n > 1 else None,
        throughput_tokens_per_s=frac(n * sent.batch, total_s) if sent.prompt_computed else None,
        roof_read_bytes_per_s=roof.read_bytes_per_s(repeat, traffic),
        util_frac=None if floor is None else frac(floor.floor_s, repeat.decode_s),
        token_source=repeat.token_source,
        num_chunks=len(repeat.chunks),
        most_tokens_a_chunk=max(repeat.tokens_by_chunk, default=0),
        usage_prompt_tokens=None if repeat.usage is None else repeat.usage.prompt_tokens,
        usage_output_tokens=None if repeat.usage is None else repeat.usage.output_tokens,
        cached_tokens=None if repeat.usage is None else repeat.usage.cached_tokens,
        finish_reason=repeat.finish_reason,
        connect_s=sent.connect_s,
        official=official_figures(repeat),
    )


def official_figures(repeat: Repeat) -> OfficialFigures | None:
    """The same request by `vllm bench serve`'s definitions (vllm/benchmarks/lib/endpoint_request_func.py, 0.32); null
    for an engine in this process, whose requests have no connection."""
    sent, times = repeat.send, repeat.choice_times_s
    if sent.connect_s is None or not times:
        return None
    start_s = sent.time_s - sent.connect_s
    tokens = None if repeat.usage is None else repeat.usage.output_tokens
    return OfficialFigures(
        ttft_s=times[0] - start_s,
        tpot_s=(times[-1] - times[0]) / (tokens - 1) if tokens is not None and tokens > 1 else None,
        latency_s=times[-1] - start_s,
    )


def utilization(
    repeats: Sequence[Repeat], traffic: DecodeTraffic, roof: Roof, peak_flop_per_s: float | None = None
) -> tuple[float | None, tuple[float, float] | None, str | None]:
    """(utilization, its 95 % interval, how the interval was made) over all repeats that have a roof.

    The interval is Student's over the repeats' utilizations, each of which carries the noise of its own readings. A
    single repeat says nothing of that noise: the roof's uncertainty stands in for it, and the interval is not one of
    95 %. The noise of a kernel's ratio to the probe, which all repeats share, is added in quadrature.
    """
    floors = ((repeat, roof.floor(repeat, traffic, peak_flop_per_s)) for repeat in repeats)
    floors_times = [(floor.floor_s, repeat.decode_s) for repeat, floor in floors if floor is not None]
    util = frac(sum(floor for floor, _ in floors_times), sum(time for _, time in floors_times))
    if util is None:
        return None, None, None
    own_half, method = _own_half_width([floor / time for floor, time in floors_times], roof)
    if roof.kernel_half_width:
        method += f", and of the kernel's ratio, {percent(roof.kernel_half_width)}"
    half = math.hypot(own_half, roof.kernel_half_width)
    return util, (util * math.exp(-half), util * math.exp(half)), method


def _own_half_width(utils: Sequence[float], roof: Roof) -> tuple[float, str]:
    """(half of the repeats' own interval in logarithms, how it was made)."""
    interval = mean_interval(utils)
    if interval is None:
        return roof.uncertainty_frac, "the roof's uncertainty; one repeat"
    return half_width(interval), f"t over {len(utils)} repeats"


def cpu_wait_frac(events: Iterable[Event]) -> float | None:
    """Share of the requests' time that our threads waited for cores which others held, or that were stolen.

    A step on several threads waits for the slowest, so the threads' waits add up. Threads of ours that wait for each
    other are no contention: waits count as far as others ran. Null where nothing was read.
    """
    waited_s, wall_s = 0.0, 0.0
    for event in events:
        if isinstance(event, ContentionEvent) and event.wait.queued_s is not None and event.wait.others_s is not None:
            waited_s += min(event.wait.queued_s, event.wait.others_s) + (event.wait.stolen_s or 0.0)
            wall_s += event.wall_s
    return frac(waited_s, wall_s)


def last_evidence(events: Iterable[Event]) -> Evidence | None:
    """The instrumented pass's answer, or that of a trace which was read later; if there was one."""
    found = [event.evidence for event in events if isinstance(event, EvidenceEvent | TraceEvent)]
    return found[-1] if found else None
