"""Is a selection table worth what its shapes say? Whole decodes with and without it, beside fresh figures of shapes.

A table is made as `harness ab ... --save` makes it. Then, in rounds: a decode by the libraries' default backends, one
by the table's, and of every problem of a step a sample of each of the two. The shapes of a round predict by how much
its decodes differ, the sum over a step's calls of what each call saves; the decodes show it. Both are of the same
seconds, so what the machine does meanwhile falls on both.

    python benchmarks/table_worth.py [--model qwen3-0.6b] [--context 512]
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch
from scipy.stats import sem, t
from tabulate import tabulate

from harness.ab.compare import run_ab
from harness.ab.interleave import turn
from harness.ab.operands.arena import Arena
from harness.ab.sampler import Sampler
from harness.ab.shapes import Case, cases
from harness.ab.side import Side, open_side
from harness.backends.registry import REGISTRIES
from harness.devices.spinning import wait_for_spinning_threads
from harness.engines.base import Engine
from harness.engines.native.rig import NativeRig
from harness.models import ResolvedModel, resolve_model
from harness.selection import save_entries
from harness.specs.ab import BASELINES, AbConfig, Op
from harness.specs.run import NativeEngine, RunConfig
from harness.specs.selection import SelectionTable, entries_of
from harness.workload import Point, make_request, warmup_request

SAMPLE_S = 0.02
WITHIN_FRAC = 0.05
"""Of TPOT: how near the shapes' prediction shall come to the decodes."""
SIDES = ("default", "table")
ELEMENTWISE = "torch"
"""On both sides: no table chooses norms, rotation and activations. Left to `auto` they follow the products' threads,
and decodes would differ by them too, which no shape predicts: some 9 of 118 ms on qwen3-0.6b."""


@dataclass
class Problem:
    """One problem of a step: how often it comes, and both sides on operands of its own."""

    case: Case
    sides: dict[str, Side]
    place: Iterator[int]

    def call_s(self, name: str, sampler: Sampler) -> float:
        """A sample, as the A/B takes them: each call on memory that no cache holds."""
        side = self.sides[name]
        count = min(max(1, round(SAMPLE_S / side.first_call_s)), len(side.launches))
        chosen = [side.launches[next(self.place) % len(side.launches)] for _ in range(count + 1)]
        sampler.settle()
        return sampler.seconds(chosen, side.uses_pool) / count


def ab_configs(model: ResolvedModel, name: str, context: int) -> list[AbConfig]:
    kinds = {layer.mixer.kind for layer in model.spec.layers}
    ops: list[Op] = ["linear", "attention"]
    if "gated_delta" in kinds:
        ops.append("linear-attention")
    return [AbConfig(op=op, model=name, contexts=(context,), chunks=(1,)) for op in ops]


def make_table(configs: list[AbConfig], path: Path, say: Callable[[str], None]) -> SelectionTable:
    for config in configs:
        _, record = run_ab(config, path.parent, say)
        entries = entries_of(record.rows, record.run_id, config.compared_to)
        table = save_entries(path, entries, config.model, record.dtype, record.device)
    return table


def problems(configs: list[AbConfig], model: ResolvedModel, table: SelectionTable, rig: NativeRig) -> list[Problem]:
    """Those that a step with fused products poses, each with an arena of its own."""
    found, sampler = [], Sampler(rig.executor)
    for config in configs:
        for case in cases(model.spec, config):
            entry = table.find(case.op, case.problem)
            if case.calls.fused == 0 or entry is None:
                continue
            arena = Arena([case], model.spec.dtype, rig.device, torch.device("cpu"), seed=1)
            operands = arena.operands(case, seed=1)
            chosen = {"default": (BASELINES[case.op], {}), "table": (entry.backend, entry.parameters)}
            sides = {
                name: open_side(case, REGISTRIES[case.op].get(backend), parameters, operands, rig.executor, sampler)
                for name, (backend, parameters) in chosen.items()
            }
            refused = [side.row for side in sides.values() if not side.launches]
            if refused:
                raise SystemExit(f"{refused[0].label} on {case.label}: {refused[0].status}, {refused[0].why}")
            found.append(Problem(case, sides, itertools.count()))
    return found


def tpot_s(engine: Engine, config: RunConfig, model: ResolvedModel, repeat: int) -> float:
    """Of a decode behind a prompt that is not computed: a step's work depends on the context's length alone."""
    wait_for_spinning_threads()
    point = Point(config.workload.input_tokens, skip_prompt=True)
    times_s = [chunk.time_s for chunk in engine.generate(make_request(config.workload, model, repeat, point, engine))]
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def measure(
    config: RunConfig, model: ResolvedModel, engines: dict[str, Engine], found: list[Problem], sampler: Sampler,
    rounds: int,
) -> tuple[list[dict[str, float]], list[list[dict[str, float]]]]:  # fmt: skip
    """(TPOT by side, seconds a call by problem and side), of each round."""
    for engine in engines.values():
        list(engine.generate(warmup_request(config.workload, model, config.workload.input_tokens or 1, 1, True)))
    decodes, calls = [], []
    for number in range(rounds):
        order = turn(SIDES, number)
        decodes.append({name: tpot_s(engines[name], config, model, number) for name in order})
        calls.append([{name: problem.call_s(name, sampler) for name in order} for problem in found])
    return decodes, calls


def report(decodes: list[dict[str, float]], calls: list[list[dict[str, float]]], found: list[Problem]) -> None:
    rows = []
    for index, problem in enumerate(found):
        default_s, table_s = (sum(of[index][name] for of in calls) / len(calls) for name in SIDES)
        count = problem.case.calls.fused
        backends = [problem.sides[name].row.label for name in SIDES]
        gain_s = count * (default_s - table_s)
        rows.append([problem.case.label, count, *backends, default_s * 1e6, table_s * 1e6, gain_s * 1e3])
    headers = ["problem", "a step", "default", "table", "us a call", "us a call", "saves ms a step"]
    print(tabulate(rows, headers, tablefmt="github", floatfmt=".2f"))
    counts = [problem.case.calls.fused for problem in found]
    predicted = [
        sum(n * (call["default"] - call["table"]) for n, call in zip(counts, of, strict=True)) / decode["default"]
        for of, decode in zip(calls, decodes, strict=True)
    ]
    shown = [1 - decode["table"] / decode["default"] for decode in decodes]
    apart = [p - s for p, s in zip(predicted, shown, strict=True)]
    print(
        f"\nTPOT: default {mean_ms(decodes, 'default')} ms, table {mean_ms(decodes, 'table')} ms, {len(decodes)} rounds"
    )
    for what, shares in (("shapes predict", predicted), ("decodes show", shown), ("apart by", apart)):
        low, high = interval(shares)
        print(f"{what}: {mean(shares):.1%} [{low:.1%}, {high:.1%}] of the default's TPOT")
    print(verdict(predicted, shown))


def interval(shares: Sequence[float]) -> tuple[float, float]:
    low, high = t.interval(0.95, len(shares) - 1, loc=mean(shares), scale=sem(shares))
    return float(low), float(high)


def verdict(predicted: Sequence[float], shown: Sequence[float]) -> str:
    """By the interval of what lies between the two, of the same rounds: one that reaches over the mark is open."""
    low, high = interval([p - s for p, s in zip(predicted, shown, strict=True)])
    mark = f"{WITHIN_FRAC:.0%} of the default's TPOT"
    if max(abs(low), abs(high)) <= WITHIN_FRAC:
        found = f"the two agree within {mark}"
    elif low > WITHIN_FRAC or high < -WITHIN_FRAC:
        found = f"the two do not agree within {mark}"
    else:
        found = f"too few rounds to say whether the two agree within {mark}"
    return f"verdict: the table was measured to save {mean(shown):.1%}, predicted were {mean(predicted):.1%}: {found}"


def mean_ms(decodes: list[dict[str, float]], name: str) -> str:
    return f"{1e3 * mean(decode[name] for decode in decodes):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=16)
    args = parser.parse_args()
    model = resolve_model(args.model)
    configs = ab_configs(model, args.model, args.context)
    default = NativeEngine(
        kind="native", weights="synthetic", linear=BASELINES["linear"], attention=BASELINES["attention"],
        linear_attention=BASELINES["linear-attention"], elementwise=ELEMENTWISE,
    )  # fmt: skip
    workload = {"input_tokens": args.context, "output_tokens": args.tokens}
    config = RunConfig.model_validate(
        {"name": "table", "model": args.model, "engine": default.model_dump(), "workload": workload}
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.yaml"
        table = make_table(configs, path, lambda line: None)
        rig = NativeRig(config, model)
        with_table = NativeEngine(kind="native", weights="synthetic", selection=str(path), elementwise=ELEMENTWISE)
        engines: dict[str, Engine] = {"default": rig.open_engine(), "table": rig.open_engine(variant=with_table)}
        found = problems(configs, model, table, rig)
        decodes, calls = measure(config, model, engines, found, Sampler(rig.executor), args.rounds)
        report(decodes, calls, found)
        rig.close()


if __name__ == "__main__":
    main()
