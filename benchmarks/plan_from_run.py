"""Does a plan from a run foretell other contexts and batches? One sweep of each, the first values calibrate the rest.

A plan is made from what the shortest context measured, or from the sweep's split, and held against the TPOT of the
longer ones; and from the smallest and the largest batch, against those between. All values of a sweep are measured in
turns, so that the machine is the same for all; each prediction is at the roof that stood around the measurement, as the
plan's roof is not what is tested.

    python benchmarks/plan_from_run.py [--model qwen3-0.6b]
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate

from harness.bench import run_bench
from harness.models import resolve_model
from harness.plan.row import plan_from_run
from harness.specs.plan import Scenario
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig
from harness.specs.sweep_report import SweepPoint

OUTPUT_TOKENS = 48


def measured(model: str, over: str, values: list[int], input_tokens: int, repeats: int) -> RunRecord:
    config: dict[str, Any] = {
        "name": "plan", "model": model, "engine": {"kind": "native", "weights": "synthetic"},
        "workload": {"input_tokens": input_tokens, "output_tokens": OUTPUT_TOKENS, "repeats": repeats},
        "sweep": {"over": over, "values": values},
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        return run_bench(RunConfig.model_validate(config), Path(folder), lambda line: None)[1]


def calibrated(record: RunRecord, points: list[SweepPoint], with_split: bool) -> RunRecord:
    """The record as if only these values had been measured; with the sweep's split, or with one utilization."""
    assert record.sweep is not None
    split = record.sweep.split if with_split else None
    return record.model_copy(
        update={"sweep": record.sweep.model_copy(update={"points": tuple(points), "split": split})}
    )


def row(record: RunRecord, source: RunRecord, point: SweepPoint, context: int, batch: int) -> dict[str, str]:
    """One prediction beside its measurement."""
    plan = plan_from_run(resolve_model(record.config.model), Scenario(context=context, batch=batch), source)
    found, roof = point.analysis.tpot_s, point.analysis.roof_read_bytes_per_s
    assert found is not None and roof is not None and plan.predicted_tpot_s is not None
    predicted = plan.predicted_tpot_s * plan.roof_read_bytes_per_s / roof
    return {
        "context": f"{context:,}", "batch": str(batch), "predicted": f"{predicted * 1e3:.2f} ms",
        "measured": f"{found * 1e3:.2f} ms", "off by": f"{predicted / found - 1:+.1%}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rows = []
    contexts = measured(args.model, "context", [256, 1024, 2048, 4096, 8192], 64, args.repeats)
    batches = measured(args.model, "batch", [1, 2, 4, 8], 256, args.repeats)
    assert contexts.sweep is not None and batches.sweep is not None
    middle = OUTPUT_TOKENS // 2
    for with_split, by in ((False, "utilization at the shortest"), (True, "split of the sweep")):
        source = calibrated(contexts, [contexts.sweep.points[0]], with_split)
        for point in contexts.sweep.points[1:]:
            rows.append({"calibrated by": by} | row(contexts, source, point, point.value + middle, 1))
    source = calibrated(batches, [batches.sweep.points[0], batches.sweep.points[-1]], False)
    for point in batches.sweep.points[1:-1]:
        found = row(batches, source, point, 256 + middle, point.value)
        rows.append({"calibrated by": "the smallest and the largest batch"} | found)
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
