"""`harness profile`: read a trace, say where its time goes, and complete the verdict of the run that it belongs to."""

from dataclasses import dataclass
from pathlib import Path

from harness.bench import run_facts
from harness.engines.base import DECODE_TRACE
from harness.errors import ConfigError
from harness.facts import RunFacts
from harness.prefill import prompt_chunk
from harness.records import load_bench, load_events
from harness.repeats import finished_repeats
from harness.report.runs import complete_run
from harness.specs.analysis import Analysis
from harness.specs.event import TraceEvent
from harness.specs.profile import TraceProfile
from harness.specs.record import RunRecord
from harness.specs.trace import PREFILL_MARK, Trace
from harness.timeline.analysis import explain
from harness.timeline.classes import classifier
from harness.timeline.floors import (
    Moved,
    StepWork,
    evidence,
    moved_by_class,
    moved_by_launch,
    moved_by_prompt,
    moved_by_prompts_launch,
)
from harness.timeline.steps import prompt_part
from harness.traces.read import read_trace
from harness.traces.rules import load_rules

FASTER_THAN_ITS_ROOF = 1.5
"""No reading of a roof errs by that much: the trace is of other steps than the run's."""
SLOWER_WORTH_A_NOTE = 2.0


@dataclass(frozen=True)
class Profiled:
    """A trace explained; the run as it is after, null where none was named or the trace can't complete it."""

    profile: TraceProfile
    record: RunRecord | None = None


def profile_trace(path: Path, num_steps: int | None = None, run: Path | None = None) -> Profiled:
    """num_steps: decode steps in the trace, where it does not tell itself. run: a run's folder, whose samples get one
    more event. Of a trace that the run took itself there is no doubt which steps it holds, even where memory was slower
    meanwhile. Raises ConfigError for a trace or run that can't be read, and for a trace that is not of the run."""
    trace, class_of = read_trace(path), classifier(load_rules())
    positions = prompt_part(trace)
    if positions is not None and num_steps is not None:
        raise ConfigError(f"{path} holds a prompt's {PREFILL_MARK}, and no decode step", "leave out --steps")
    if run is None:
        return Profiled(explain(trace, path.name, class_of, num_steps))
    record = _judged(run)
    _check_device(trace, record, path)
    is_its_own = path.name == DECODE_TRACE and path.resolve().parent == run.resolve()
    work = _step_work(run, record, is_its_own) if positions is None else _prompt_work(run, record, positions)
    profile = explain(trace, path.name, class_of, num_steps, work)
    if (why_not := _why_not(profile)) is not None or profile.wall_s is None or profile.gaps_s is None:
        return Profiled(_noted(profile, f"it can't complete {record.run_id}, which stays as it is: {why_not}"))
    if profile.num_steps is None or profile.steps_source is None:
        raise ConfigError(
            f"{path}: nothing in it tells how many decode steps it holds, and a run's verdict is per step",
            "give --steps N, or mark each step with torch.profiler.record_function('decode_step')",
        )
    if not is_its_own:
        _check_speed(profile.wall_s, work, record)
    found = TraceEvent(
        trace=path.name, format=profile.format, steps_source=profile.steps_source, mean_context=work.mean_context,
        evidence=evidence(profile.classes, work, profile.num_steps, profile.wall_s, profile.gaps_s),
    )  # fmt: skip
    return Profiled(_with_pace(profile, profile.wall_s, record), complete_run(run, found))


def _with_pace(profile: TraceProfile, wall_s: float, record: RunRecord) -> TraceProfile:
    """A note where the traced steps were much slower than the run's: profilers cost time, and marks may err."""
    tpot_s = record.analysis.tpot_s if record.analysis else None
    if tpot_s is None or wall_s < SLOWER_WORTH_A_NOTE * tpot_s:
        return profile
    note = f"a step of the trace takes {wall_s / tpot_s:.1f} times the run's TPOT: by the profiler, or it is no step"
    return _noted(profile, note)


def _noted(profile: TraceProfile, note: str) -> TraceProfile:
    return profile.model_copy(update={"notes": (*profile.notes, note)})


def _why_not(profile: TraceProfile) -> str | None:
    """Why a trace says nothing of a run's decode."""
    if profile.status == "incomplete":
        return "it is incomplete"
    if profile.wall_s is None:
        return "sums have no timeline, so no gaps"
    return None if profile.positions is None else "a run's verdict and cause are of its decode"


def _judged(folder: Path) -> RunRecord:
    record = load_bench(folder)
    if record.config.sweep is not None:
        raise ConfigError(f"{folder.name} is a sweep over several workloads", "name a run of one")
    if record.status != "done" or record.analysis is None:
        raise ConfigError(f"{folder.name} did not come to its end: it is {record.status}", "name a run that is done")
    return record


def _step_work(folder: Path, record: RunRecord, is_its_own: bool) -> StepWork:
    """The mean decode step of the run, at its own contexts; of its own trace from a certain step on, of those steps."""
    analysis: Analysis | None = record.analysis
    repeats = finished_repeats(load_events(folder))
    contexts = [context for repeat in repeats for context in repeat.step_contexts()]
    traced = record.config.profile
    if is_its_own and traced is not None and traced.first_step is not None and contexts:
        begin = repeats[-1].step_contexts()[0] + traced.first_step
        contexts = [*range(begin, begin + traced.decode_steps)]
    if analysis is None or not contexts:
        raise ConfigError(f"{folder.name} has no decode step", "raise workload.output_tokens, and run again")
    facts = run_facts(record)
    return StepWork(
        moved=moved_by_class(facts.traffic, contexts, analysis.batch),
        roof_bytes_per_s=analysis.roof_read_bytes_per_s,
        peak_flop_per_s=facts.peak_flop_per_s,
        mean_context=sum(contexts) // len(contexts),
        launches=_if_native(facts, moved_by_launch(facts.engine.ops, analysis.batch)),
    )


def _prompt_work(folder: Path, record: RunRecord, positions: tuple[int, int]) -> StepWork:
    """Positions of the prompt of the run's last request, which is the one that a run traces."""
    facts, (begin, end) = run_facts(record), positions
    num_tokens = [repeat.send.num_prompt_tokens for repeat in finished_repeats(load_events(folder))][-1]
    if begin >= end or end > num_tokens:
        raise ConfigError(
            f"the trace takes in positions {begin} to {end} of a prompt, {folder.name} has one of {num_tokens} tokens",
            "name the run that was traced",
        )
    chunk = prompt_chunk(facts.model, facts.traffic, begin, end, num_tokens)
    return StepWork(
        moved=moved_by_prompt(chunk, facts.traffic),
        roof_bytes_per_s=record.analysis.roof_read_bytes_per_s if record.analysis else None,
        peak_flop_per_s=facts.peak_flop_per_s,
        mean_context=(begin + end) // 2,
        launches=_if_native(facts, moved_by_prompts_launch(facts.engine.ops, end - begin, facts.engine.dtype)),
    )


def _if_native(facts: RunFacts, launches: dict[str, Moved]) -> dict[str, Moved]:
    """vLLM's products run under names that do not tell them apart."""
    return launches if facts.engine.kind == "native" else {}


def _check_device(trace: Trace, record: RunRecord, path: Path) -> None:
    """A trace of a GPU is not of a run on a CPU, nor that of one card of a run on another. What a server runs on, its
    run does not know."""
    device = record.device
    if device is None or device.kind in ("scripted", "unknown"):
        return
    traced = {w.device for w in trace.work}
    if (device.kind == "cpu") != (traced == {"CPU"}) and traced:
        raise ConfigError(
            f"{path}: a trace of {', '.join(sorted(traced))}, while {record.run_id} ran on {device.name}",
            "name the run that was traced",
        )
    if device.kind != "cpu" and trace.device_names and device.name not in trace.device_names:
        raise ConfigError(
            f"{path}: a trace of {', '.join(trace.device_names)}, while {record.run_id} ran on {device.name}",
            "name the run that was traced",
        )


def _check_speed(wall_s: float, work: StepWork, record: RunRecord) -> None:
    """Steps that would have read the run's model faster than its memory can be read are of another model."""
    if work.floor_s is not None and wall_s * FASTER_THAN_ITS_ROOF < work.floor_s:
        raise ConfigError(
            f"a step of the trace takes {wall_s * 1e3:.3f} ms, a step of {record.config.model} at least"
            f" {work.floor_s * 1e3:.3f} ms on that machine",
            "the trace is of another model, or holds fewer steps than it or --steps says",
        )
