"""`harness bench`: one request after another, each with readings of the roof around and within it, and their judgement.

The order is the method (docs/definitions.md, "Order of a run"): the probe's buffer before the engine's memory, a
warm-up with a prompt that no repeat uses, then probe, request with its pauses, probe for each repeat; the instrumented
pass comes last, since its instruments cost time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from harness.analysis import analyse
from harness.devices.contention import WaitBooks
from harness.devices.datasheet import match_device
from harness.engines.base import EXPLAIN_STEPS, Engine, Rig
from harness.engines.registry import open_rig
from harness.environment import read_environment
from harness.errors import ConfigError, GateFailed, MeasurementError
from harness.exclusive import measuring
from harness.facts import RunFacts
from harness.measure import reading_events, request_events
from harness.models import ResolvedModel, resolve_model
from harness.probe.base import Probe
from harness.records import RunFolder, end_recorded, load_events
from harness.repeats import failed_requests, finished_repeats
from harness.specs.analysis import Analysis
from harness.specs.event import ChunkEvent, Event, EvidenceEvent
from harness.specs.record import RunRecord
from harness.specs.request import Request
from harness.specs.run import Gate, NativeEngine, RunConfig
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import CONFIG_DTYPES
from harness.specs.vllm import VllmEngine, VllmOptions
from harness.sweeps import analyse_sweep
from harness.traffic import decode_traffic
from harness.workload import Point, check_fits, make_request, points, schedule, warmup_request

SHORT_READING_S = 0.1
"""Of a reading that a kernel's calls stand beside: the shorter both are, the less memory changes between them."""
NOT_THIS_PROCESS = ("scripted", "openai", "vllm-server")
"""Engines whose threads are not ours: what ours wait for says nothing of a request, but much of a reading."""
Say = Callable[[str], None]


@dataclass
class Run:
    """A run that is being made: its folder, its growing record, and whom to tell."""

    folder: RunFolder
    record: RunRecord
    tell: Say

    def say(self, line: str) -> None:
        self.folder.log(line)
        self.tell(line)

    def append_all(self, events: Iterable[Event]) -> None:
        """One short line of samples each, as they happen."""
        for event in events:
            self.folder.append(event)

    def update(self, **fields: object) -> None:
        """Change the record and replace its file."""
        self.record = self.record.model_copy(update=fields)
        self.folder.write(self.record)


def run_bench(config: RunConfig, runs_parent: Path, tell: Say) -> tuple[Path, RunRecord, str]:
    """Make the run; returns its folder, its record and the text of repeat 0.

    Raises what went wrong, after the record says so. A verdict of `invalid` or `unstable` is a result, not an error.
    """
    check_can_trace(config)
    model = resolve_model(config.model)
    rig = open_rig(config, model)
    try:
        with RunFolder.create(runs_parent, rig.device.arch or rig.device.kind, config.name) as folder:
            run = Run(folder, _new_record(folder.run_id, config, model, rig), tell)
            run.update()
            with end_recorded(run.update):
                if rig.device.kind == "scripted":
                    _measure(run, rig, model)
                else:
                    with measuring(run.say):
                        _measure(run, rig, model)
            return folder.path, run.record, _text(load_events(folder.path))
    finally:
        rig.close()


def check_can_trace(config: RunConfig) -> None:
    """Raises ConfigError for a trace that the engine can't take: behind the requests it would cost the whole run."""
    engine = config.engine
    if config.profile is None:
        return
    profile, num_tokens = config.profile, config.workload.output_tokens
    # A step more than asked for is marked, since from mark to mark they are whole.
    last = profile.decode_steps if profile.first_step is None else profile.first_step + profile.decode_steps + 1
    if last >= num_tokens:
        begin = "" if profile.first_step is None else f" behind {profile.first_step} others"
        raise ConfigError(
            f"profile.decode_steps is {profile.decode_steps}{begin}: an answer of {num_tokens} tokens has fewer",
            "lower profile.decode_steps or profile.first_step, or raise workload.output_tokens",
        )
    if isinstance(engine, NativeEngine):
        return
    if not isinstance(engine, VllmEngine):
        raise ConfigError(
            f"an engine of kind {engine.kind} takes no trace of itself",
            "leave out --profile and profile: of the run, or profile the server and read that: harness profile TRACE",
        )
    if engine.tensor_parallel * engine.pipeline_parallel > 1 or engine.executor not in (None, "uni"):
        raise ConfigError(
            "vLLM's workers would be processes of their own, which a profiler in this one does not see",
            "leave executor and the parallel sizes as they are, or leave out --profile and profile: of the run",
        )


def _new_record(run_id: str, config: RunConfig, model: ResolvedModel, rig: Rig) -> RunRecord:
    sheet = match_device(rig.device)
    return RunRecord(
        run_id=run_id,
        created_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        status="running",
        config=config,
        environment=read_environment(),
        model=model.spec,
        device=rig.device,
        datasheet_bytes_per_s=None if sheet is None else sheet.memory_bytes_per_s.value,
        traffic=engine_traffic(config, model),
    )


def engine_traffic(config: RunConfig, model: ResolvedModel) -> DecodeTraffic:
    """Traffic of the model as this engine holds it: the native one and vLLM convert weights to their type as they load,
    but for packed ones, which the native one refuses."""
    engine, spec = config.engine, model.spec
    if isinstance(engine, NativeEngine):
        dtype = CONFIG_DTYPES[engine.dtype] if engine.dtype else spec.dtype
    elif isinstance(engine, VllmOptions) and spec.quantization is None:
        dtype = engine.held_dtype(spec.dtype)
    else:
        return decode_traffic(spec, model.tensors, model.tensors_source)
    return decode_traffic(model.spec, model.retyped(dtype), model.tensors_source, kv_dtype=dtype)


def _measure(run: Run, rig: Rig, model: ResolvedModel) -> None:
    probe = rig.open_probe()
    try:
        if probe is not None:
            run.say("probe: looking for the fastest verified reader")
            run.update(probe=probe.survey(_working_set_bytes(run.record)))
        run.say(f"engine: loading {run.record.config.model}")
        engine = rig.open_engine(run.folder.path)
        try:
            run.update(engine=engine.report())
            _request_repeatedly(run, engine, probe, model)
            engine.audit()
            run.update(engine=engine.report())  # again: shapes that only a prompt brings have run by now
        finally:
            engine.close()
    finally:
        if probe is not None:
            probe.close()
    events = load_events(run.folder.path)
    run.update(status="done", **derived_figures(run.record, events))


def _working_set_bytes(record: RunRecord) -> int | None:
    """Bytes of a step in the middle of the answer; a text's length is not known yet and does not matter much."""
    work = record.config.workload
    prompt = 0 if work.input_tokens is None else record.config.longest_prompt
    context = prompt + work.output_tokens // 2
    return record.traffic.step_bytes(context) if record.traffic else None


def _request_repeatedly(run: Run, engine: Engine, probe: Probe | None, model: ResolvedModel) -> None:
    config = run.record.config
    work, order = config.workload, schedule(config)
    for point in points(config):
        if point.input_tokens is not None:
            check_fits(point.input_tokens, work.output_tokens, model)
    requests = [make_request(work, model, repeat, point, engine) for repeat, point in enumerate(order)]
    _warm_up(run, engine, model, requests)
    if probe is not None:
        run.say("the engine's own products beside the probe")
        run.append_all(engine.kernel_reads(partial(probe.read, SHORT_READING_S)))
    here = config.engine.kind not in NOT_THIS_PROCESS
    books = WaitBooks() if here else None
    beside = None if here or config.engine.kind == "scripted" else WaitBooks()
    for repeat, request in enumerate(requests):
        run.say(f"repeat {repeat + 1} of {len(requests)}{_at(config, order[repeat])}")
        peak_dtype = None if request.skip_prompt else engine.report().dtype
        run.append_all(reading_events(probe, repeat, "before", peak_dtype, beside))
        run.append_all(request_events(engine, probe, request, repeat, config.probe.every_s, books))
        run.append_all(reading_events(probe, repeat, "after", peak_dtype, beside))
    check_any_finished(load_events(run.folder.path))
    if config.sweep is None:
        run.say("instrumented pass: where a step's time goes")
        run.folder.append(EvidenceEvent(evidence=engine.explain(requests[-1], EXPLAIN_STEPS)))
    if config.profile is not None:
        run.say("traces of a prompt's chunk and of decode steps")
        engine.trace(requests[-1], config.profile.decode_steps, run.folder.path, config.profile.first_step)


def check_any_finished(events: Iterable[Event]) -> None:
    """Raises MeasurementError where every request failed: that is no result."""
    events = list(events)
    failed = failed_requests(events)
    if failed and not finished_repeats(events):
        first = failed[0]
        raise MeasurementError(f"all {len(failed)} requests failed; the first: {first.what}", first.mend)


def _warm_up(run: Run, engine: Engine, model: ResolvedModel, requests: Sequence[Request]) -> None:
    """One for each shape of a request: libraries build a kernel for a new shape when they first meet it."""
    work = run.record.config.workload
    shapes = sorted({(engine.num_prompt_tokens(r), r.batch, r.skip_prompt) for r in requests})
    for num_tokens, _, _ in shapes:
        check_fits(num_tokens, work.output_tokens, model)
    for num_tokens, batch, skip_prompt in shapes:
        run.say(f"warm-up with {num_tokens} prompt tokens{f', batch {batch}' if batch > 1 else ''}")
        request = warmup_request(work, model, num_tokens, batch, skip_prompt, engine.takes_ids)
        engine.prepare(request)
        for _ in engine.generate(request):
            pass


def _at(config: RunConfig, point: Point) -> str:
    """Which value of the sweep it is."""
    if config.sweep is None:
        return ""
    value = point.batch if config.sweep.over == "batch" else point.input_tokens
    return f": {config.sweep.over} {value}"


def _text(events: Iterable[Event]) -> str:
    """What the model answered in repeat 0."""
    return "".join(event.text for event in events if isinstance(event, ChunkEvent) and event.repeat == 0)


def derived_figures(record: RunRecord, events: Sequence[Event]) -> dict[str, Any]:
    """The fields of a record that follow from its events: of one workload, or of each value of a sweep."""
    facts = run_facts(record)
    if record.config.sweep is None:
        requests, analysis = analyse(facts, events)
        return {"requests": requests, "analysis": analysis}
    requests, report = analyse_sweep(facts, record.config.sweep, events)
    return {"requests": requests, "sweep": report}


def run_facts(record: RunRecord) -> RunFacts:
    """What the analysis needs beside the events; MeasurementError for a run that ended before it had an engine."""
    if record.device is None or record.traffic is None or record.engine is None:
        raise MeasurementError(f"run {record.run_id} ended before its engine was ready", "run it again")
    return RunFacts(
        run_id=record.run_id, config=record.config, model=record.model, device=record.device,
        traffic=record.traffic, engine=record.engine, probe=record.probe,
        datasheet_bytes_per_s=record.datasheet_bytes_per_s,
    )  # fmt: skip


def check_gate(gate: Gate, analysis: Analysis) -> None:
    """Raises GateFailed for the first bound that is missed; a figure that is null misses every bound."""
    bounds = [
        ("util_frac", gate.min_util_frac, analysis.util_frac, 1),
        ("throughput_tokens_per_s", gate.min_throughput_tokens_per_s, analysis.throughput_tokens_per_s, 1),
        ("ttft_s", gate.max_ttft_s, analysis.ttft_s, -1),
        ("tpot_s", gate.max_tpot_s, analysis.tpot_s, -1),
    ]
    for name, bound, value, sign in bounds:
        if bound is not None and (value is None or sign * value < sign * bound):
            side = "at least" if sign > 0 else "at most"
            found = "null" if value is None else f"{value:.4g}"
            raise GateFailed(f"gate: {name} is {found}, wanted {side} {bound:.4g}", "see the verdict's next step")
