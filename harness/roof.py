"""The denominator of every utilization: what memory gave around each stretch of a request. Pure.

A reading stands before each request and after it, and in engines that can pause some within. The steps between two
neighbouring readings are a stretch, and its roof is their mean: a machine whose memory slows down and recovers within
one request is followed as far as the readings are close.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from harness.repeats import Repeat, finished_repeats
from harness.roofline import Floor, compute_floor_s, memory_floor_s
from harness.specs.event import Event, KernelReadEvent, ProbeEvent
from harness.specs.probe import ProbeReading
from harness.specs.step import DecodeTraffic
from harness.stats import half_width, median, median_interval

MIN_ROOF_UNCERTAINTY_FRAC = 0.03


def reading_rate(reading: ProbeReading) -> float:
    """Bytes per second of a reading: its median pass."""
    return reading.pass_bytes / statistics.median(reading.passes_s)


@dataclass(frozen=True)
class Stretch:
    """Decode steps first_step <= i < end_step of a request, and the probe's rates just before and after them."""

    first_step: int
    end_step: int
    before: float
    after: float

    @property
    def num_steps(self) -> int:
        return self.end_step - self.first_step

    @property
    def probe_read_bytes_per_s(self) -> float:
        return (self.before + self.after) / 2

    @property
    def half_spread_frac(self) -> float:
        return abs(self.after - self.before) / (self.after + self.before)


@dataclass(frozen=True)
class Roof:
    """What memory gave: by repeat and stretch, and over the run."""

    stretches: dict[int, tuple[Stretch, ...]]
    kernel_ratio: float
    """The fastest kernel's rate over that of the probe beside it; 1 where the probe is faster."""
    kernel_half_width: float
    """Half the 95 % interval of kernel_ratio, in logarithms: of the part of the ratio's interval that is above 1."""
    probe_read_bytes_per_s: float | None
    """Median over all decode steps."""
    uncertainty_frac: float
    drift_frac: float | None
    source: str | None

    def memory_s(self, repeat: Repeat, step_bytes: Callable[[int], int], first_step: int = 0) -> float | None:
        """Least time to move so many bytes at each context of a repeat's decode steps, from first_step on; null without
        readings around the repeat, and without a step."""
        contexts = repeat.step_contexts()
        stretches = self.stretches.get(repeat.send.repeat)
        if not stretches or not contexts:
            return None
        return sum(
            memory_floor_s(
                sum(map(step_bytes, contexts[max(first_step, stretch.first_step) : stretch.end_step])),
                stretch.probe_read_bytes_per_s * self.kernel_ratio,
            )
            for stretch in stretches
        )

    def floor(self, repeat: Repeat, traffic: DecodeTraffic, peak_flop_per_s: float | None) -> Floor | None:
        """Of all decode steps of a repeat together."""
        memory_s = self.memory_s(repeat, partial(traffic.step_bytes, batch=repeat.send.batch))
        if memory_s is None:
            return None
        flop = sum(traffic.step_flop(context, repeat.send.batch) for context in repeat.step_contexts())
        return Floor(memory_s, None if peak_flop_per_s is None else compute_floor_s(flop, peak_flop_per_s))

    def read_bytes_per_s(self, repeat: Repeat, traffic: DecodeTraffic) -> float | None:
        """The one roof that gives the same memory floor to the whole repeat."""
        step_bytes = partial(traffic.step_bytes, batch=repeat.send.batch)
        memory_s = self.memory_s(repeat, step_bytes)
        return None if memory_s is None else sum(map(step_bytes, repeat.step_contexts())) / memory_s


def find_roof(events: Sequence[Event]) -> Roof:
    """Roof of a stretch: the mean of the readings before and after it, times the fastest kernel's rate over theirs.

    roof = max(probe, fastest verified kernel read): the probe is a floor of what memory gives. On a machine whose speed
    moves, the two are comparable only when measured side by side, so the kernel enters as a ratio. Uncertainty is half
    the difference of neighbouring readings over their mean, the median over steps, at least 3 per cent. A ratio that is
    1 in truth is raised by half its noise, so that utilization reads too low rather than too high.
    """
    rates = [reading_rate(event.reading) for event in events if isinstance(event, ProbeEvent)]
    kernel, ratios = _fastest_kernel(events)
    ratio = statistics.median(ratios)
    by_repeat = _stretches(events)
    by_step = [stretch for several in by_repeat.values() for stretch in several for _ in range(stretch.num_steps)]
    low, high = median_interval(ratios)
    source = None if not rates else "probe" if ratio <= 1 else f"kernel {kernel}, {ratio:.3f} x the probe beside it"
    return Roof(
        stretches=by_repeat,
        kernel_ratio=max(1.0, ratio),
        kernel_half_width=half_width((max(1.0, low), max(1.0, high))),
        probe_read_bytes_per_s=median([stretch.probe_read_bytes_per_s for stretch in by_step] or rates),
        uncertainty_frac=max(MIN_ROOF_UNCERTAINTY_FRAC, median([s.half_spread_frac for s in by_step]) or 0.0),
        drift_frac=rates[-1] / rates[0] - 1 if len(rates) > 1 else None,
        source=source,
    )


def _stretches(events: Sequence[Event]) -> dict[int, tuple[Stretch, ...]]:
    """By repeat, for those that have a reading on both sides."""
    at = {(e.repeat, e.place): reading_rate(e.reading) for e in events if isinstance(e, ProbeEvent)}
    found: dict[int, tuple[Stretch, ...]] = {}
    for repeat in finished_repeats(events):
        number = repeat.send.repeat
        if (number, "before") not in at or (number, "after") not in at:
            continue
        readings = [
            (0, at[number, "before"]),
            *((steps, reading_rate(reading)) for steps, reading in repeat.pauses),
            (repeat.num_decode_steps, at[number, "after"]),
        ]
        found[number] = tuple(
            Stretch(first, end, before, after) for (first, before), (end, after) in pairwise(readings)
        )
    return found


def _fastest_kernel(events: Iterable[Event]) -> tuple[str, list[float]]:
    """(kernel, its rates over the probe's by trial); the one whose median is largest: a maximum of noise is noise."""
    ratios: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, KernelReadEvent):
            kernel_rate = event.read_bytes / statistics.median(event.calls_s)
            ratios.setdefault(event.kernel, []).append(kernel_rate / reading_rate(event.reading))
    return max(ratios.items(), key=lambda item: statistics.median(item[1]), default=("none", [0.0]))
