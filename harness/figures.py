"""From events to figures: pure, so that a record can be computed again from its samples, and tests can script time.

Definitions (n output tokens; t0 request sent, t1..tn token arrivals; docs/definitions.md):
  TTFT = t1 - t0        TPOT = (tn - t1) / (n - 1), null for n < 2        throughput = n / (tn - t0)
  utilization = sum over decode steps of floor_s(context) / sum of their measured times
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.errors import ConfigError
from harness.roofline import frac, memory_floor_s
from harness.specs.engine import Evidence
from harness.specs.event import (
    ChunkEvent,
    ContentionEvent,
    EndEvent,
    Event,
    EvidenceEvent,
    KernelReadEvent,
    ProbeEvent,
    SendEvent,
)
from harness.specs.probe import ProbeReading
from harness.specs.record import RequestFigures
from harness.specs.step import DecodeTraffic
from harness.stats import mean_interval, median, median_interval
from harness.units import percent

MIN_ROOF_UNCERTAINTY_FRAC = 0.03


@dataclass
class Repeat:
    """One finished request as it was measured."""

    send: SendEvent
    chunks: list[ChunkEvent] = field(default_factory=list)
    end: EndEvent | None = None

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def num_decode_steps(self) -> int:
        """Tokens after the first chunk: the first chunk belongs to prefill."""
        return self.num_tokens - len(self.chunks[0].token_ids) if self.chunks else 0

    @property
    def decode_s(self) -> float:
        """First to last token."""
        return self.chunks[-1].time_s - self.chunks[0].time_s if self.chunks else 0.0

    def step_contexts(self) -> range:
        """Positions that each decode step attends to, its own included.

        The step that yields token j (from 1) takes token j-1 in, at position prompt + j - 2 (from 0): it attends to
        prompt + j - 1.
        """
        first = self.send.num_prompt_tokens + len(self.chunks[0].token_ids) if self.chunks else 0
        return range(first, first + self.num_decode_steps)


def finished_repeats(events: Iterable[Event]) -> list[Repeat]:
    """The repeats that came to their end, in order; what a killed run left unfinished is not a figure."""
    repeats: dict[int, Repeat] = {}
    for event in events:
        if isinstance(event, SendEvent):
            repeats[event.repeat] = Repeat(event)
        elif isinstance(event, ChunkEvent | EndEvent):
            if event.repeat not in repeats:
                raise ConfigError(
                    f"samples: repeat {event.repeat} has a {event.event} before its send", "they are damaged"
                )
            if isinstance(event, EndEvent):
                repeats[event.repeat].end = event
            elif event.token_ids:
                repeats[event.repeat].chunks.append(event)
    return [repeat for _, repeat in sorted(repeats.items()) if repeat.end is not None]


def reading_rate(reading: ProbeReading) -> float:
    """Bytes per second of a reading: its median pass."""
    return reading.pass_bytes / statistics.median(reading.passes_s)


@dataclass(frozen=True)
class Roof:
    """The denominator: what memory gives, around each repeat."""

    by_repeat: dict[int, float]
    probe_read_bytes_per_s: float | None
    uncertainty_frac: float
    drift_frac: float | None
    source: str | None
    kernel_half_width: float = 0.0
    """Where a kernel raised the roof: half the 95 % interval of its ratio to the probe, in logarithms."""

    @property
    def read_bytes_per_s(self) -> float | None:
        """Median over repeats."""
        return median(list(self.by_repeat.values()))


def find_roof(events: Sequence[Event]) -> Roof:
    """Roof of a repeat: the mean of the readings just before and after it, times the fastest kernel's rate over theirs.

    roof = max(probe, fastest verified kernel read): the probe is a floor of what memory gives. On a machine whose speed
    moves, the two are comparable only when measured side by side, so the kernel enters as a ratio. Uncertainty is half
    the difference of the two readings over their mean, the median over repeats, at least 3 per cent.
    """
    readings = [event for event in events if isinstance(event, ProbeEvent)]
    rates = [reading_rate(event.reading) for event in readings]
    kernel, ratios = _fastest_kernel(events)
    ratio = statistics.median(ratios)
    at = {(event.repeat, event.place): rate for event, rate in zip(readings, rates, strict=True)}
    pairs = {
        event.repeat: (at[event.repeat, "before"], at[event.repeat, "after"])
        for event in readings
        if event.place == "after" and (event.repeat, "before") in at
    }
    half_spreads = [abs(after - before) / (after + before) for before, after in pairs.values()]
    source = None if not rates else "probe" if ratio <= 1 else f"kernel {kernel}, {ratio:.3f} x the probe beside it"
    return Roof(
        by_repeat={repeat: (before + after) / 2 * max(1.0, ratio) for repeat, (before, after) in pairs.items()},
        probe_read_bytes_per_s=median([(before + after) / 2 for before, after in pairs.values()] or rates),
        uncertainty_frac=max(MIN_ROOF_UNCERTAINTY_FRAC, median(half_spreads) or 0.0),
        drift_frac=rates[-1] / rates[0] - 1 if len(rates) > 1 else None,
        source=source,
        kernel_half_width=_half_width(median_interval(ratios)) if ratio > 1 else 0.0,
    )


def _half_width(interval: tuple[float, float] | None) -> float:
    """Of an interval of factors: half of it in logarithms; 0 where there is none."""
    return math.log(interval[1] / interval[0]) / 2 if interval else 0.0


def _fastest_kernel(events: Iterable[Event]) -> tuple[str, list[float]]:
    """(kernel, its rates over the probe's by trial); the one whose median is largest: a maximum of noise is noise."""
    ratios: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, KernelReadEvent):
            kernel_rate = event.read_bytes / statistics.median(event.calls_s)
            ratios.setdefault(event.kernel, []).append(kernel_rate / reading_rate(event.reading))
    return max(ratios.items(), key=lambda item: statistics.median(item[1]), default=("none", [0.0]))


def request_figures(repeat: Repeat, traffic: DecodeTraffic, roof: Roof) -> RequestFigures:
    """One repeat's figures; null where it has too few tokens or no roof, or the clock did not move."""
    n, sent = repeat.num_tokens, repeat.send
    first = repeat.chunks[0].time_s if n else None
    total_s = repeat.chunks[-1].time_s - sent.time_s if n else None
    steps = repeat.num_decode_steps
    roof_rate = roof.by_repeat.get(sent.repeat)
    floor_s = repeat_floor_s(repeat, traffic, roof_rate)
    return RequestFigures(
        repeat=sent.repeat,
        num_prompt_tokens=sent.num_prompt_tokens,
        num_output_tokens=n,
        ttft_s=None if first is None else (first - sent.time_s) or None,
        tpot_s=frac(repeat.decode_s, steps) or None,
        throughput_tokens_per_s=frac(n, total_s),
        roof_read_bytes_per_s=roof_rate,
        util_frac=frac(floor_s, repeat.decode_s),
    )


def repeat_floor_s(repeat: Repeat, traffic: DecodeTraffic, roof_rate: float | None) -> float | None:
    """Sum of the decode steps' floors; null without a roof or a step."""
    if roof_rate is None or not repeat.num_decode_steps:
        return None
    return memory_floor_s(sum(traffic.step_bytes(context) for context in repeat.step_contexts()), roof_rate)


def utilization(
    repeats: Sequence[Repeat], traffic: DecodeTraffic, roof: Roof
) -> tuple[float | None, tuple[float, float] | None, str | None]:
    """(utilization, its 95 % interval, how the interval was made) over all repeats that have a roof.

    The interval is Student's over the repeats' utilizations, each of which carries the noise of its own two readings;
    the noise of a kernel's ratio to the probe, which all repeats share, is added in quadrature. A single repeat says
    nothing of its noise: its interval is the roof's uncertainty.
    """
    floors_times = [
        (floor_s, repeat.decode_s)
        for repeat in repeats
        if (floor_s := repeat_floor_s(repeat, traffic, roof.by_repeat.get(repeat.send.repeat))) is not None
    ]
    util = frac(sum(floor for floor, _ in floors_times), sum(time for _, time in floors_times))
    if util is None:
        return None, None, None
    if len(floors_times) == 1:
        spread = util * roof.uncertainty_frac
        return util, (util - spread, util + spread), "roof uncertainty; one repeat"
    interval = mean_interval([floor / time for floor, time in floors_times])
    assert interval is not None
    center, half = math.sqrt(interval[0] * interval[1]), math.hypot(_half_width(interval), roof.kernel_half_width)
    widened = f" and of the kernel's ratio, {percent(roof.kernel_half_width)}" if roof.kernel_half_width else ""
    return util, (center * math.exp(-half), center * math.exp(half)), f"t over {len(floors_times)} repeats{widened}"


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
    """The instrumented pass's answer, if there was one."""
    found = [event.evidence for event in events if isinstance(event, EvidenceEvent)]
    return found[-1] if found else None
