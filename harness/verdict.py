"""The judgement of a decode: how far from the memory wall, whether that can be believed, and what keeps it away.

Utilization is floor over measured time, and says only HOW MUCH is lost. WHY is answered from evidence alone: an
instrumented pass, later a trace. A busy device proves nothing; so utilization is never its own explanation, and
without evidence the cause is `unknown`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.roofline import Wall
from harness.specs.analysis import Verdict, VerdictName
from harness.specs.engine import Evidence
from harness.units import ms, num_bytes, percent

UNDERFED_BELOW_FRAC = 0.70
AT_WALL_FROM_FRAC = 0.90
MIN_DECODE_STEPS = 32
MAX_INTERVAL_WIDTH_FRAC = 0.10
MAX_ROOF_UNCERTAINTY_FRAC = 0.10
MAX_CPU_WAIT_FRAC = 0.02
MIN_CAUSE_SHARE_FRAC = 0.5
"""A cause is named when it alone explains at least half of the time lost."""


@dataclass(frozen=True)
class Measured:
    """What a verdict is made from; a decode's figures over all its repeats."""

    util_frac: float | None
    interval_frac: tuple[float, float] | None
    roof_read_bytes_per_s: float | None
    roof_uncertainty_frac: float
    num_decode_steps: int
    """Of the shortest repeat."""
    working_set_bytes: float
    """What one step reads."""
    cache_bytes: int | None
    probe_buffer_bytes: int | None
    """What the readings read."""
    evidence: Evidence | None
    cpu_wait_frac: float | None = None
    """Share of the time that other processes kept our threads from their cores."""
    bound: Wall | None = None
    """The wall that the floor stands at; null: memory, as far as is known."""
    fault: str | None = None
    """What is wrong with the measurement itself, such as answers shorter than asked for."""


def judge(measured: Measured) -> Verdict:
    """The verdict with its reason, cause and next step."""
    refused = _refusal(measured)
    if refused is not None:
        return refused
    util = measured.util_frac or 0.0
    name: VerdictName = (
        "underfed" if util < UNDERFED_BELOW_FRAC else "approaching" if util < AT_WALL_FROM_FRAC else "at-wall"
    )
    reason = f"utilization {util:.3f}: the floor is {percent(util)} of the measured step time"
    if name == "at-wall":
        wall = "compute" if measured.bound == "compute" else "memory-bandwidth"
        return Verdict(verdict=name, reason=reason, cause=wall, next_step=NEXT_STEP[wall])
    cause, why = find_cause(measured.evidence, measured.roof_read_bytes_per_s)
    return Verdict(verdict=name, reason=reason + why, cause=cause, next_step=NEXT_STEP[cause])


def _refusal(m: Measured) -> Verdict | None:
    """Why the measurement can't be judged, if it can't."""
    if m.fault is not None:
        return _invalid(m.fault, "mend the workload or the server, and run again")
    if m.num_decode_steps < MIN_DECODE_STEPS:
        return _invalid(
            f"{m.num_decode_steps} decode steps, fewer than {MIN_DECODE_STEPS}", "raise workload.output_tokens"
        )
    if m.util_frac is None or m.roof_read_bytes_per_s is None:
        return Verdict(
            verdict="no-roof", reason="this machine can't probe the memory that the engine reads",
            cause="unknown", next_step="run the harness on the machine that holds the model",
        )  # fmt: skip
    if m.cache_bytes is not None and m.working_set_bytes < m.cache_bytes:
        return _invalid(
            f"cache-resident: a step reads {num_bytes(m.working_set_bytes)}, the last-level cache holds"
            f" {num_bytes(m.cache_bytes)}, so memory bandwidth is no wall here (utilization reads {m.util_frac:.3f})",
            "take a model larger than the cache; the step times themselves stand",
        )
    if m.cache_bytes is not None and m.probe_buffer_bytes is not None and m.probe_buffer_bytes < m.cache_bytes:
        return _invalid(
            f"the probe's buffer, {num_bytes(m.probe_buffer_bytes)}, fits in the last-level cache of"
            f" {num_bytes(m.cache_bytes)}: it read no memory",
            "raise probe.buffer_bytes to four caches, or free memory",
        )
    if m.util_frac > 1 + m.roof_uncertainty_frac:
        return _invalid(
            f"utilization {m.util_frac:.3f} is above 1 + {m.roof_uncertainty_frac:.3f}: faster than memory can be read",
            "bytes are over-counted, or a cache serves them, or the probe was disturbed: compare the probe readings",
        )
    return _unstable(m)


def _unstable(m: Measured) -> Verdict | None:
    """Cores that others held, a roof that moved, or an interval too wide to tell one verdict from the next but one."""
    if m.cpu_wait_frac is not None and m.cpu_wait_frac > MAX_CPU_WAIT_FRAC:
        reason = f"other processes kept this run's threads from their cores for {percent(m.cpu_wait_frac)} of the time"
    elif m.roof_uncertainty_frac > MAX_ROOF_UNCERTAINTY_FRAC:
        reason = f"neighbouring readings differ by {percent(2 * m.roof_uncertainty_frac)}: the roof moved"
    elif m.interval_frac is not None and m.interval_frac[1] - m.interval_frac[0] > MAX_INTERVAL_WIDTH_FRAC:
        low, high = m.interval_frac
        reason = f"the interval of utilization, {low:.3f} to {high:.3f}, is wider than {MAX_INTERVAL_WIDTH_FRAC}"
    else:
        return None
    quiet = "stop what else runs on the machine, or raise workload.repeats"
    return Verdict(verdict="unstable", reason=reason, cause="unknown", next_step=quiet)


def _invalid(reason: str, next_step: str) -> Verdict:
    return Verdict(verdict="invalid", reason=reason, cause="unknown", next_step=next_step)


def find_cause(e: Evidence | None, roof_read_bytes_per_s: float | None) -> tuple[str, str]:
    """(cause, how much it explains): the part of the step that loses at least half of all lost time.

    All within the instrumented pass: its own steps, and the bytes that they read at their own context. A kind of
    launch loses its time minus the floor of the bytes it reads; time outside kernels is lost whole.
    """
    if e is None or not e.num_steps or e.step_s is None or roof_read_bytes_per_s is None:
        return "unknown", ""
    moved = {part.name: part.read_bytes + part.write_bytes for part in e.classes}
    losses = {f"{part.name}-path": part.step_s - moved[part.name] / roof_read_bytes_per_s for part in e.classes}
    losses |= {"outside-kernels": e.outside_kernels_s or 0.0, "communication": e.communication_s or 0.0}
    lost_s = e.step_s - sum(moved.values()) / roof_read_bytes_per_s
    return largest_loss(losses, lost_s)


def largest_loss(losses: Mapping[str, float], lost_s: float) -> tuple[str, str]:
    """(cause, how much it explains) of what each part loses, in seconds, and all parts together."""
    cause = max(losses, key=lambda name: losses[name])
    if lost_s <= 0 or losses[cause] < MIN_CAUSE_SHARE_FRAC * lost_s:
        return "unknown", "; no single part of the step explains half of the loss"
    share = percent(min(1.0, losses[cause] / lost_s))
    return cause, f"; {cause} loses {ms(losses[cause])} a step, {share} of the loss"


NEXT_STEP = {
    "memory-bandwidth": "fewer bytes a token (smaller types, a smaller cache), faster memory, or several tokens a read",
    "compute": "fewer FLOP a token, or fewer requests at once: this step is bound by arithmetic",
    "linear-path": "compare linear backends on these shapes: harness ab linear",
    "attention-path": "the cache is read slowly: try another attention backend in engine.attention",
    "linear-attention-path": "the recurrent state moves slowly: try another backend in engine.linear_attention",
    "elementwise-path": "fuse or thread the elementwise kernels: engine.elementwise",
    "sampling-path": "sampling costs more than it reads: sample on the device, greedy without a sort",
    "memcpy-path": "copies and fills take the time: keep on the device what the step reads, and write it in place",
    "other-path": "kernels of no known class take the time: harness profile lists them, kernel_classes.yaml names them",
    "outside-kernels": "the device waits for its host: capture the step as a graph, launch less, synchronize less",
    "communication": "ranks wait for each other: fewer ranks, or a faster collective",
    "unknown": "take a torch.profiler trace of a few decode steps, and read it: harness profile TRACE --run RUN",
}
