"""How often is the verdict wrong? Thousands of scripted runs whose true utilization is known.

Prints, for each scenario, how the runs were judged, the rate of wrong verdicts, and how often the 95 % interval
held the truth. A wrong verdict is a confident one: `unstable` says that the harness can not tell, and is counted apart.

    python benchmarks/verdict_truth.py [--seeds 500]
"""

import argparse
from collections import Counter
from typing import Any

from scripted_runs import scripted_run
from tabulate import tabulate

from harness.analysis import analyse
from harness.models import resolve_model
from harness.specs.analysis import Analysis

QUIET = {"step_noise_frac": 0.02, "probe_noise_frac": 0.01, "repeat_noise_frac": 0.003}
NOISY = {"step_noise_frac": 0.10, "probe_noise_frac": 0.05, "repeat_noise_frac": 0.02}
SCENARIOS: dict[str, dict[str, Any]] = {
    "quiet": QUIET,
    "drifts down by 30 %": {**QUIET, "bandwidth_drift_frac": -0.3},
    "drifts up by 50 %": {**QUIET, "bandwidth_drift_frac": 0.5},
    "swings by 20 % within 20 s": {**QUIET, "bandwidth_wave_frac": 0.2},
    "noisy": NOISY,
    "kernels outrun the probe": {**QUIET, "probe_frac": 0.92},
    "noisy, kernels outrun": {**NOISY, "probe_frac": 0.92},
}
TRUTHS = {0.5: "underfed", 0.8: "approaching", 0.95: "at-wall", 1.3: "invalid"}
GAPS = {"gap of the step's length": ({**QUIET, "util_frac": 0.98, "gap_s": 0.048}, "outside-kernels")}


def run_once(engine: dict[str, Any], seed: int) -> Analysis:
    workload = {"input_tokens": 32, "output_tokens": 128, "repeats": 5}
    scripted = {"kind": "scripted", "seed": seed, **engine}
    return analyse(*scripted_run(MODEL, {"engine": scripted, "workload": workload}))[1]


def judge_scenario(name: str, noise: dict[str, Any], truth: float, expected: str, seeds: int) -> dict[str, Any]:
    """Rates over all seeds."""
    found = [run_once({**noise, "util_frac": truth}, seed) for seed in range(seeds)]
    verdicts = Counter(analysis.verdict for analysis in found)
    wrong = sum(count for verdict, count in verdicts.items() if verdict not in (expected, "unstable"))
    covered = sum(a.util_interval_frac[0] <= truth <= a.util_interval_frac[1] for a in found if a.util_interval_frac)
    return {
        "scenario": name, "truth": truth, "expected": expected, "wrong": f"{wrong / seeds:.2%}",
        "unstable": f"{verdicts['unstable'] / seeds:.2%}", "interval covers": f"{covered / seeds:.1%}",
        "judged": ", ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=500)
    seeds = parser.parse_args().seeds
    rows = [
        judge_scenario(name, noise, truth, expected, seeds)
        for name, noise in SCENARIOS.items()
        for truth, expected in TRUTHS.items()
    ]
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))
    print(f"\n{len(rows) * seeds} runs; causes:")
    for name, (engine, cause) in GAPS.items():
        causes = Counter(run_once(engine, seed).cause for seed in range(seeds // 5))
        print(f"  {name}: expected {cause}, found {dict(causes)}")


MODEL = resolve_model("qwen3-0.6b")

if __name__ == "__main__":
    main()
