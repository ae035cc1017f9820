"""`harness bench`: one request after another, each with readings of the roof around and within it, and their judgement.

The order is the method (docs/definitions.md, "Order of a run"): the probe's buffer before the engine's memory, a
warm-up with a prompt that no repeat uses, then probe, request with its pauses, probe for each repeat; the instrumented
pass comes last, since its instruments cost time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from harness.analysis import RunFacts, analyse
from harness.devices.contention import WaitBooks
from harness.devices.datasheet import match_device
from harness.engines.base import EXPLAIN_STEPS, Engine, Request, Rig
from harness.engines.registry import open_rig
from harness.environment import read_environment
from harness.errors import ConfigError, GateFailed, MeasurementError
from harness.exclusive import measuring
from harness.measure import reading_events, request_events
from harness.models import ResolvedModel, resolve_model
from harness.probe.base import Probe
from harness.records import RunFolder, end_recorded, load_events
from harness.specs.event import ChunkEvent, Event, EvidenceEvent
from harness.specs.record import Analysis, RunRecord
from harness.specs.run import Gate, NativeEngine, RunConfig, Workload
from harness.specs.step import DecodeTraffic
from harness.specs.tensor import CONFIG_DTYPES
from harness.traffic import decode_traffic

SHORT_READING_S = 0.1
"""Of a reading that a kernel's calls stand beside: the shorter both are, the less memory changes between them."""
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
    """Traffic of the model as this engine holds it: the native one converts every weight to its type as it loads."""
    if not isinstance(config.engine, NativeEngine):
        return decode_traffic(model.spec, model.tensors, model.tensors_source)
    dtype = CONFIG_DTYPES[config.engine.dtype] if config.engine.dtype else model.spec.dtype
    return decode_traffic(model.spec, model.retyped(dtype), model.tensors_source, kv_dtype=dtype)


def _measure(run: Run, rig: Rig, model: ResolvedModel) -> None:
    probe = rig.open_probe()
    try:
        if probe is not None:
            run.say("probe: looking for the fastest verified reader")
            run.update(probe=probe.survey(_working_set_bytes(run.record)))
        run.say(f"engine: loading {run.record.config.model}")
        engine = rig.open_engine()
        try:
            run.update(engine=engine.report())
            _request_repeatedly(run, engine, probe, model)
            run.update(engine=engine.report())  # again: shapes that only a prompt brings have run by now
        finally:
            engine.close()
    finally:
        if probe is not None:
            probe.close()
    events = load_events(run.folder.path)
    requests, analysis = analyse(run_facts(run.record), events)
    run.update(status="done", requests=requests, analysis=analysis)


def _working_set_bytes(record: RunRecord) -> int | None:
    """Bytes of a step in the middle of the answer; a text's length is not known yet and does not matter much."""
    work = record.config.workload
    context = (work.input_tokens or 0) + work.output_tokens // 2
    return record.traffic.step_bytes(context) if record.traffic else None


def _request_repeatedly(run: Run, engine: Engine, probe: Probe | None, model: ResolvedModel) -> None:
    work = run.record.config.workload
    if work.input_tokens is not None:
        _check_fits(work.input_tokens, work.output_tokens, model)
    requests = [make_request(work, model, repeat) for repeat in range(work.repeats)]
    lengths = sorted({engine.num_prompt_tokens(request) for request in requests})
    for length in lengths:
        _check_fits(length, work.output_tokens, model)
    # A warm-up for each length: libraries build a kernel for a new shape when they first meet it.
    for length in lengths:
        run.say(f"warm-up with {length} prompt tokens")
        for _ in engine.generate(_warmup_request(work, model, length)):
            pass
    if probe is not None:
        run.say("the engine's own products beside the probe")
        run.append_all(engine.kernel_reads(partial(probe.read, SHORT_READING_S)))
    books = None if run.record.engine is None or run.record.engine.kind == "scripted" else WaitBooks()
    for repeat, request in enumerate(requests):
        run.say(f"repeat {repeat + 1} of {work.repeats}")
        run.append_all(reading_events(probe, repeat, "before"))
        run.append_all(request_events(engine, probe, request, repeat, run.record.config.probe.every_s, books))
        run.append_all(reading_events(probe, repeat, "after"))
    run.say("instrumented pass: where a step's time goes")
    run.folder.append(EvidenceEvent(evidence=engine.explain(requests[-1], EXPLAIN_STEPS)))


def _text(events: Iterable[Event]) -> str:
    """What the model answered in repeat 0."""
    return "".join(event.text for event in events if isinstance(event, ChunkEvent) and event.repeat == 0)


def make_request(work: Workload, model: ResolvedModel, repeat: int) -> Request:
    """The request of a repeat: its text in turn, or token ids that no other repeat has."""
    ignore_eos = work.mode == "fixed-length"
    if work.prompts is not None:
        return Request(work.prompts[repeat % len(work.prompts)], None, work.output_tokens, ignore_eos)
    ids = random_ids(model, work.input_tokens or 1, f"{work.seed}/{repeat}")
    return Request(None, ids, work.output_tokens, ignore_eos)


def _warmup_request(work: Workload, model: ResolvedModel, num_tokens: int) -> Request:
    return Request(None, random_ids(model, num_tokens, f"{work.seed}/warm-up"), work.warmup_tokens, True)


def random_ids(model: ResolvedModel, num_tokens: int, seed: str) -> tuple[int, ...]:
    """Token ids drawn uniformly from the whole vocabulary."""
    draw = random.Random(seed)
    return tuple(draw.randrange(model.spec.vocab_size) for _ in range(num_tokens))


def _check_fits(num_prompt_tokens: int, output_tokens: int, model: ResolvedModel) -> None:
    if num_prompt_tokens < 1:
        raise ConfigError("workload.prompts: a prompt has no tokens", "write a text of at least one token")
    limit = model.spec.max_position_embeddings
    if num_prompt_tokens + output_tokens > limit:
        raise ConfigError(
            f"{num_prompt_tokens} prompt and {output_tokens} output tokens pass the model's {limit} positions",
            "lower workload.output_tokens, or shorten the prompt",
        )


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
