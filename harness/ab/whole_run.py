"""`harness ab run A B`: whole requests by two variants of one engine, on one set of weights where the engine can have
both, else by two engines of one kind.

Rounds in turning order: both answer the same prompt, which no other round has. What differs is one key of the
configuration, so what is shown is that key's doing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from harness.ab.interleave import turn
from harness.ab.judge import is_settled
from harness.ab.ran import refuse_alike
from harness.devices.spinning import wait_for_spinning_threads
from harness.engines.base import Engine, PairOpener, Rig
from harness.engines.registry import open_rig
from harness.environment import read_environment
from harness.errors import MeasurementError
from harness.exclusive import measuring
from harness.models import ResolvedModel, resolve_model
from harness.records import RunFolder, Say, end_recorded, silent, teller
from harness.specs.ab_run import AbRequestEvent, AbRunConfig, AbRunRecord, Agreement, Comparison, SideFigures, SideName
from harness.specs.engine import EngineReport
from harness.specs.request import Request
from harness.stats import paired_ratio
from harness.workload import Point, check_fits, make_request, warmup_request

SIDES: tuple[SideName, SideName] = ("a", "b")


@dataclass
class Answers:
    """What one side gave."""

    engine: Engine
    num_steps: int = 0
    """Decode steps of all its requests, the warm-up's too."""
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    logits: list[Sequence[float] | None] = field(default_factory=list)


def run_ab_run(
    config: AbRunConfig, runs_parent: Path, tell: Say, finished: Say = silent
) -> tuple[Path, AbRunRecord]:  # fmt: skip
    """Measure, and leave a record. ConfigError where the two do not differ in exactly one key of the engine."""
    difference, model = config.difference(), resolve_model(config.a.model)
    with ExitStack() as stack:
        rigs, both = _open_rigs(config, model, stack)
        device = rigs[0].device
        folder = stack.enter_context(RunFolder.create(runs_parent, device.arch or device.kind, "ab-run"))
        record = AbRunRecord(
            run_id=folder.run_id, created_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            status="running", config=config, difference=difference, environment=read_environment(), device=device,
        )  # fmt: skip
        folder.write(record)
        say = teller(folder, tell)
        stack.enter_context(end_recorded(lambda **fields: folder.write(record.model_copy(update=fields))))
        if device.kind != "scripted":
            stack.enter_context(measuring(say))
        say(f"a and b differ in {difference.key}: {difference.a!r} and {difference.b!r}")
        engines = (stack.enter_context(closing(engine)) for engine in _open_engines(rigs, both, folder.path))
        sides = {name: Answers(engine) for name, engine in zip(SIDES, engines, strict=True)}
        _answer(config, model, sides, folder, say, finished)
        reports = {name: _checked_report(name, side) for name, side in sides.items()}
        refuse_alike(difference, (config.a, reports["a"]), (config.b, reports["b"]))
        done = record.model_copy(update={"status": "done", **_figures(sides, reports)})
        folder.write(done)
        return folder.path, done


def _open_rigs(config: AbRunConfig, model: ResolvedModel, stack: ExitStack) -> tuple[list[Rig], PairOpener | None]:
    """One for both where the engine can have two variants of itself on one set of weights, else one each."""
    rigs = [stack.enter_context(closing(open_rig(config.a, model)))]
    both = rigs[0].sharing(config.b)
    if both is None:
        rigs.append(stack.enter_context(closing(open_rig(config.b, model))))
    return rigs, both


def _open_engines(rigs: list[Rig], both: PairOpener | None, log_dir: Path) -> Iterator[Engine]:
    """One after the other; two that share nothing leave their logs apart, too."""
    if both is not None:
        yield from both(log_dir)
    else:
        for name, rig in zip(SIDES, rigs, strict=True):
            yield rig.open_engine(log_dir / name)


def _answer(
    config: AbRunConfig, model: ResolvedModel, sides: dict[SideName, Answers], folder: RunFolder, say: Say,
    finished: Say,
) -> None:  # fmt: skip
    """A warm-up of both, then rounds until TPOT's ratio is as precise as wanted."""
    work = config.a.workload
    for block in range(config.max_blocks):
        request = make_request(work, model, block, Point(work.input_tokens), sides["a"].engine)
        num_prompt = sides["a"].engine.num_prompt_tokens(request)
        check_fits(num_prompt, work.output_tokens, model)
        if block == 0:
            say("warm-up")
            for side in sides.values():
                warm_up = warmup_request(work, model, num_prompt, 1, False, side.engine.takes_ids)
                side.engine.prepare(warm_up)
                side.num_steps += sum(len(chunk.token_ids) for chunk in side.engine.generate(warm_up)) - 1
            if work.input_tokens is not None:  # later prompts are of the same length, and pose the same problems
                a, b = (side.engine.report() for side in sides.values())
                refuse_alike(config.difference(), (config.a, a), (config.b, b))
        say(f"round {block + 1} of {config.max_blocks} at most")
        for name in turn(SIDES, block):
            _request(sides[name], request)
            folder.append(
                AbRequestEvent(
                    block=block, side=name, ttft_s=sides[name].ttft_s[-1], tpot_s=sides[name].tpot_s[-1],
                    num_tokens=len(sides[name].tokens[-1]),
                )
            )  # fmt: skip
        finished(f"{block + 1} of {config.max_blocks} rounds at most done")
        times_s: dict[str, list[float]] = {name: side.tpot_s for name, side in sides.items()}
        if block + 1 >= config.min_blocks and is_settled(times_s, "a", config.precision):
            return


def _request(side: Answers, request: Request) -> None:
    wait_for_spinning_threads()
    side.engine.prepare(request)
    sent_s = side.engine.clock_s()
    times_s, tokens, logits = _answered(side.engine, request)
    if len(tokens) < 2:
        raise MeasurementError(f"an answer has {len(tokens)} tokens", "ask for two or more: workload.output_tokens")
    if times_s[-1] == times_s[0]:
        raise MeasurementError(
            f"all {len(tokens)} tokens of an answer came at once: there is no time between them",
            "stop what else runs on the machine, or ask for longer answers: workload.output_tokens",
        )
    side.ttft_s.append(times_s[0] - sent_s)
    side.tpot_s.append((times_s[-1] - times_s[0]) / (len(tokens) - 1))
    side.num_steps += len(tokens) - 1
    side.tokens.append(tokens)
    side.logits.append(logits)


def _answered(engine: Engine, request: Request) -> tuple[list[float], list[int], Sequence[float] | None]:
    """(when tokens came, the tokens, the logits behind the prompt where the engine shows them)"""
    times_s: list[float] = []
    tokens: list[int] = []
    logits: Sequence[float] | None = None
    for chunk in engine.generate(request):
        if not chunk.token_ids:  # a server also says who speaks, and what it took
            continue
        times_s.append(chunk.time_s)
        if not tokens:
            logits = getattr(engine, "last_logits", lambda: None)()
        tokens += chunk.token_ids
    return times_s, tokens, logits


def _checked_report(name: SideName, side: Answers) -> EngineReport:
    """MeasurementError where an engine that counts saw fewer steps on what this side asked for than it answered by."""
    side.engine.audit()
    report = side.engine.report()
    counted = report.counted_steps
    if counted is not None and counted < side.num_steps:
        saw = f"ran {counted} of its {side.num_steps} steps" if counted else "was never called"
        raise MeasurementError(
            f"what {name} asked for {saw}, by the counters",
            "let the table list this model's products of one row: `harness ab linear --batch 1 --save`",
        )
    return report


def _figures(sides: dict[SideName, Answers], reports: dict[SideName, EngineReport]) -> dict[str, object]:
    """The record's fields that follow from the answers."""
    return {
        "sides": tuple(
            SideFigures(
                side=name, ttft_s=statistics.median(side.ttft_s), tpot_s=statistics.median(side.tpot_s),
                engine=reports[name],
            )
            for name, side in sides.items()
        ),
        "comparisons": (
            _comparison("ttft_s", sides["a"].ttft_s, sides["b"].ttft_s),
            _comparison("tpot_s", sides["a"].tpot_s, sides["b"].tpot_s),
        ),
        "agreement": agreement(sides["a"], sides["b"]),
    }  # fmt: skip


def _comparison(figure: str, a_s: Sequence[float], b_s: Sequence[float]) -> Comparison:
    ratio = paired_ratio(a_s, b_s)
    faster = "b is faster" if ratio.ratio > 1 else "b is slower"
    return Comparison.model_validate(
        {
            "figure": figure, "ratio": ratio.ratio, "interval": (ratio.low, ratio.high), "num_pairs": ratio.num_pairs,
            "shows": faster if ratio.shows_difference else "no difference shown",
        }
    )  # fmt: skip


def agreement(a: Answers, b: Answers) -> Agreement:
    """Token by token, and the logits behind each prompt, which no earlier choice has parted yet."""
    parted = [
        next((i for i, (x, y) in enumerate(zip(mine, yours, strict=False)) if x != y), min(len(mine), len(yours)))
        if mine != yours
        else None
        for mine, yours in zip(a.tokens, b.tokens, strict=True)
    ]
    first = next(((block, place) for block, place in enumerate(parted) if place is not None), None)
    pairs = [
        (x, y)
        for mine, yours in zip(a.logits, b.logits, strict=True)
        if mine is not None and yours is not None
        for x, y in zip(mine, yours, strict=True)
    ]
    return Agreement(
        num_requests=len(parted), num_same=sum(place is None for place in parted), first_difference=first,
        logits_max_difference=max((abs(x - y) for x, y in pairs), default=None),
        logits_max=max((abs(x) for x, _ in pairs), default=None),
    )  # fmt: skip
