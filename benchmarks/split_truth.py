"""How often does the split's interval hold the truth? Scripted sweeps whose two utilizations are known.

Prints, for each scenario, how often the 95 % interval of each path held its truth, how wide it was, and how often the
sweep was refused as too noisy.

    python benchmarks/split_truth.py [--seeds 200]
"""

import argparse
from statistics import median
from typing import Any

from scripted_runs import scripted_run
from tabulate import tabulate

from harness.models import resolve_model
from harness.specs.sweep_report import Interval, SweepReport
from harness.sweeps import analyse_sweep

MODEL = resolve_model("qwen3-0.6b")
QUIET = {"step_noise_frac": 0.02, "probe_noise_frac": 0.01, "repeat_noise_frac": 0.003}
NOISY = {"step_noise_frac": 0.05, "probe_noise_frac": 0.03, "repeat_noise_frac": 0.02}
SCENARIOS: dict[str, dict[str, Any]] = {
    "quiet": QUIET,
    "drifts down by 30 %": {**QUIET, "bandwidth_drift_frac": -0.3},
    "swings by 20 % within 20 s": {**QUIET, "bandwidth_wave_frac": 0.2},
    "noisy": NOISY,
}
TRUTHS = [(0.95, 0.85), (0.8, 0.4), (0.5, 0.9)]
"""(linear, attention)"""


def run_once(engine: dict[str, Any], linear: float, attention: float, seed: int) -> SweepReport:
    scripted = {"kind": "scripted", "seed": seed, **engine, "util_frac": linear, "kv_util_frac": attention}
    config = {
        "engine": scripted,
        "workload": {"input_tokens": 64, "output_tokens": 64, "repeats": 5, "seed": seed},
        "sweep": {"over": "context", "values": [512, 1536, 4096]},
    }
    facts, events = scripted_run(MODEL, config)
    assert facts.config.sweep is not None
    return analyse_sweep(facts, facts.config.sweep, events)[1]


def judge_scenario(name: str, engine: dict[str, Any], linear: float, attention: float, seeds: int) -> dict[str, str]:
    """Rates over all seeds."""
    splits = [run_once(engine, linear, attention, seed).split for seed in range(seeds)]
    found = [split for split in splits if split is not None]
    row = {"scenario": name, "linear": str(linear), "attention": str(attention)}
    for path, truth in (("linear", linear), ("attention", attention)):
        intervals: list[Interval] = [getattr(split, f"{path}_interval_frac") for split in found]
        covered = sum(low <= truth <= high for low, high in intervals)
        row[f"covers {path}"] = f"{covered / len(found):.1%}" if found else "-"
        row[f"width {path}"] = f"{median(high - low for low, high in intervals):.3f}" if found else "-"
    return row | {"too noisy": f"{1 - len(found) / seeds:.1%}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    rows = [
        judge_scenario(name, engine, linear, attention, seeds)
        for name, engine in SCENARIOS.items()
        for linear, attention in TRUTHS
    ]
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))
    print(f"\n{len(rows) * seeds} sweeps")


if __name__ == "__main__":
    main()
