"""The judgement of a prompt: how far from the compute wall, and what share of the whole request each part has. Pure.

A prompt's tokens share one reading of the weights, so from some tens of tokens on arithmetic is its wall: products with
weights grow with the tokens, attention with their square. Long prompts are taken in by chunks, each of which reads all
weights again; the floor is the sum over chunks of the higher wall.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.facts import RunFacts
from harness.repeats import Repeat, batch_of
from harness.roofline import Floor, Wall, compute_floor_s, memory_floor_s
from harness.specs.analysis import PrefillVerdictName, PromptChunk, TimeShare
from harness.specs.engine import Evidence
from harness.specs.event import Event, PeakEvent
from harness.specs.model import ModelSpec
from harness.specs.step import DecodeTraffic
from harness.stats import mean_interval, median
from harness.traffic import PromptFlop, chunk_flop, prompt_flop
from harness.units import percent
from harness.verdict import AT_WALL_FROM_FRAC, MAX_CPU_WAIT_FRAC, MAX_INTERVAL_WIDTH_FRAC, UNDERFED_BELOW_FRAC

INVALID_ABOVE_FRAC = 1.1
"""The peak is the best of a few products of a few sizes: a tenth more is believed."""


def chunk_bounds(num_tokens: int, chunk: int | None) -> list[tuple[int, int]]:
    """(begin, end) of each chunk; without a size, one."""
    edges = [*range(0, num_tokens, chunk or num_tokens), num_tokens]
    return list(pairwise(edges))


def prompt_chunks(spec: ModelSpec, traffic: DecodeTraffic, num_tokens: int, chunk: int | None) -> list[PromptChunk]:
    """FLOP and bytes of each chunk of a prompt."""
    bounds = chunk_bounds(num_tokens, chunk)
    return [prompt_chunk(spec, traffic, begin, end, num_tokens) for begin, end in bounds]


def prompt_chunk(spec: ModelSpec, traffic: DecodeTraffic, begin: int, end: int, num_tokens: int) -> PromptChunk:
    """FLOP and bytes of positions begin <= i < end of a prompt of num_tokens; its last alone goes through the head."""
    flop = chunk_flop(spec, begin, end)
    head = prompt_flop(spec, num_tokens).linear - chunk_flop(spec, 0, num_tokens).linear
    return PromptChunk(
        begin=begin, end=end, linear_flop=flop.linear + (head if end == num_tokens else 0),
        attention_flop=flop.attention, state_flop=flop.state, weight_bytes=traffic.step_weight_bytes(end - begin),
    )  # fmt: skip


def chunk_floor(chunk: PromptChunk, roof: float, peak: float) -> Floor:
    """Both walls of a chunk."""
    flop = chunk.linear_flop + chunk.attention_flop + chunk.state_flop
    return Floor(memory_s=memory_floor_s(chunk.weight_bytes, roof), compute_s=compute_floor_s(flop, peak))


def main_wall(floors: Sequence[Floor]) -> Wall:
    """The wall that most of the floors' time stands at."""
    compute_s = sum(floor.floor_s for floor in floors if floor.bound == "compute")
    return "compute" if 2 * compute_s > sum(floor.floor_s for floor in floors) else "memory"


def peaks_around(events: Iterable[Event]) -> dict[int, float]:
    """By repeat, the mean of what products reached before it and after it."""
    found: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, PeakEvent):
            found.setdefault(event.repeat, []).append(event.reading.flop_per_s)
    return {repeat: sum(peaks) / len(peaks) for repeat, peaks in found.items()}


@dataclass(frozen=True)
class Prompt:
    """One repeat's prompts before the walls of their moment."""

    ttft_s: float
    flop: int
    floors: list[Floor]
    peak_flop_per_s: float

    @property
    def mfu_frac(self) -> float:
        """Of its own FLOP: texts differ in length."""
        return self.flop / self.ttft_s / self.peak_flop_per_s

    @property
    def floor_s(self) -> float:
        return sum(floor.floor_s for floor in self.floors)


def prefill_row(
    facts: RunFacts, repeats: Sequence[Repeat], roof: float | None, wait_frac: float | None, events: Iterable[Event]
) -> dict[str, Any]:
    """The prompt's work and judgement. A batch's prompts are taken in one after another."""
    num_tokens, batch = _prompt_tokens(repeats), batch_of(repeats)
    row: dict[str, Any] = {"prefill_flop": None, "prefill_mfu_frac": None}
    if num_tokens is None:
        return row
    ttft_s = median([repeat.ttft_s for repeat in repeats if repeat.send.prompt_computed and repeat.chunks])
    if not ttft_s:
        return row
    flop = PromptFlop(*(batch * part for part in prompt_flop(facts.model, num_tokens)))
    row |= {"prefill_flop": sum(flop)} | {f"prefill_{name}_flop": part for name, part in flop._asdict().items()}
    prompts = _prompts(facts, repeats, roof, peaks_around(events))
    chunks = prompt_chunks(facts.model, facts.traffic, num_tokens, facts.prefill_chunk)
    row["prefill_chunks"] = chunks
    row["prefill_achieved_bytes_per_s"] = batch * sum(chunk.weight_bytes for chunk in chunks) / ttft_s
    verdict = judge_prefill(prompts, wait_frac)
    row |= {"prefill_verdict": verdict.verdict, "prefill_reason": verdict.reason}
    if not prompts:
        return row
    return row | {
        "prefill_floor_s": median([prompt.floor_s for prompt in prompts]),
        "prefill_bound": main_wall(prompts[0].floors),
        "prefill_util_frac": verdict.util_frac,
        "prefill_util_interval_frac": verdict.interval_frac,
        "prefill_mfu_frac": median([prompt.mfu_frac for prompt in prompts]),
    }


def _prompts(
    facts: RunFacts, repeats: Sequence[Repeat], roof: float | None, peaks: Mapping[int, float]
) -> list[Prompt]:
    """Of the repeats whose prompts were computed; none without a roof or a peak."""
    found = []
    for repeat in repeats:
        sent, peak = repeat.send, peaks.get(repeat.send.repeat, facts.peak_flop_per_s)
        if sent.prompt_computed and repeat.chunks and repeat.ttft_s > 0 and roof is not None and peak is not None:
            chunks = prompt_chunks(facts.model, facts.traffic, sent.num_prompt_tokens, facts.prefill_chunk)
            floors = [chunk_floor(chunk, roof, peak) for chunk in chunks]
            flop = sent.batch * sum(prompt_flop(facts.model, sent.num_prompt_tokens))
            found.append(Prompt(repeat.ttft_s, flop, sent.batch * floors, peak))
    return found


def _prompt_tokens(repeats: Sequence[Repeat]) -> int | None:
    middle = median([repeat.send.num_prompt_tokens for repeat in repeats])
    return None if middle is None else round(middle)


@dataclass(frozen=True)
class PrefillVerdict:
    """The judgement of a prompt."""

    verdict: PrefillVerdictName
    reason: str
    util_frac: float | None = None
    interval_frac: tuple[float, float] | None = None


def judge_prefill(prompts: Sequence[Prompt], wait_frac: float | None) -> PrefillVerdict:
    """The same bands as a decode's, on the floor over TTFT. wait_frac: of the time that others held our cores."""
    if not prompts:
        return PrefillVerdict("no-peak", "no matrix product or no memory was timed here: a wall is not known")
    utils = [prompt.floor_s / prompt.ttft_s for prompt in prompts]
    util, interval = sum(utils) / len(utils), mean_interval(utils)
    name, reason = _band(util, interval, wait_frac, main_wall(prompts[0].floors))
    return PrefillVerdict(name, reason, util, interval)


def _band(
    util: float, interval: tuple[float, float] | None, wait: float | None, wall: Wall
) -> tuple[PrefillVerdictName, str]:
    if wait is not None and wait > MAX_CPU_WAIT_FRAC:
        return "unstable", f"other processes kept this run's threads from their cores for {percent(wait)} of the time"
    if util > INVALID_ABOVE_FRAC:
        return "invalid", f"utilization {util:.3f}: faster than the machine's {wall} wall, whose figure is too low"
    if interval is not None and interval[1] - interval[0] > MAX_INTERVAL_WIDTH_FRAC:
        low, high = interval
        return (
            "unstable",
            f"the interval of utilization, {low:.3f} to {high:.3f}, is wider than {MAX_INTERVAL_WIDTH_FRAC}",
        )
    reason = f"utilization {util:.3f}: the {wall} floor is {percent(util)} of the time to the first token"
    if util < UNDERFED_BELOW_FRAC:
        return "underfed", reason
    return ("approaching" if util < AT_WALL_FROM_FRAC else "at-wall"), reason


def time_shares(
    spec: ModelSpec, num_tokens: int | None, prefill_frac: float | None, decode_frac: float | None,
    evidence: Evidence | None,
) -> tuple[TimeShare, ...]:  # fmt: skip
    """Parts of a whole request's time, the largest first. Decode's parts by the clock of the instrumented pass where
    there was one; a prompt's by FLOP, since no instrument looked into it."""
    shares = []
    if prefill_frac and num_tokens:
        flop = prompt_flop(spec, num_tokens)
        parts = {f"prefill {name}": part for name, part in flop._asdict().items() if part}
        shares += [
            TimeShare(part=name, time_frac=prefill_frac * part / sum(flop), by="FLOP") for name, part in parts.items()
        ]
    if decode_frac:
        shares += [
            TimeShare(part=name, time_frac=decode_frac * part, by="clock") for name, part in _decode_parts(evidence)
        ]
    return tuple(sorted(shares, key=lambda share: -share.time_frac))


def _decode_parts(evidence: Evidence | None) -> list[tuple[str, float]]:
    if evidence is None or evidence.step_s is None:
        return [("decode", 1.0)]
    times = {part.name: part.step_s for part in evidence.classes}
    times["outside kernels"] = evidence.outside_kernels_s or 0.0
    return [(f"decode {name}", time_s / evidence.step_s) for name, time_s in times.items() if time_s]
