"""Does the split name the path that is slow? The native engine with one path slowed on purpose, by a known time.

A slowed backend calls the real one and then waits as long as reading its bytes at RATE would take. So a path whose
utilization is u becomes one of 1 / (1/u + roof / RATE), and the other path must stay where it was.

    python benchmarks/split_slowed.py [--model qwen3-0.6b]
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate
from torch import Tensor

from harness.backends.attention.cpu_decode import CpuDecode
from harness.backends.base import Launch
from harness.backends.linear.cpu_gemv import CpuGemv
from harness.backends.registry import attention_backend, linear_backend
from harness.backends.weights import AsLoaded
from harness.bench import run_bench
from harness.specs.problem import AttentionProblem
from harness.specs.run import RunConfig
from harness.specs.sweep_report import Split
from harness.stats import median

RATE = 60e9


def _wait(num_bytes: int) -> None:
    end_s = time.perf_counter() + num_bytes / RATE
    while time.perf_counter() < end_s:
        pass


@attention_backend("slowed-decode")
class SlowedDecode(CpuDecode):
    """cpu-decode and a wait."""

    def bind(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> Launch:
        launch, places = super().bind(q, k_cache, v_cache, context, out, problem), context.numpy()

        def slowed() -> None:
            launch()
            _wait(self.read_bytes(problem, int(places[0])))

        return slowed


@linear_backend("slowed-gemv")
class SlowedGemv(CpuGemv):
    """cpu-gemv and a wait."""

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        launch = super().bind(x, packed, out)

        def slowed() -> None:
            launch()
            _wait(packed.num_bytes)

        return slowed


def sweep(model: str, contexts: list[int], repeats: int, **engine: str) -> tuple[Split, float]:
    """(the split, the roof that it was taken at)."""
    config: dict[str, Any] = {
        "name": "split", "model": model,
        "engine": {"kind": "native", "weights": "synthetic", "attention": "cpu-decode", **engine},
        "workload": {"input_tokens": 64, "output_tokens": 48, "repeats": repeats},
        "sweep": {"over": "context", "values": contexts},
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        _, record, _ = run_bench(RunConfig.model_validate(config), Path(folder), lambda line: None)
    report = record.sweep
    if report is None or report.split is None:
        raise SystemExit(f"no split: {report.split_reason if report else record.status}")
    roof = median([p.analysis.roof_read_bytes_per_s for p in report.points if p.analysis.roof_read_bytes_per_s])
    assert roof is not None
    return report.split, roof


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sides = {
        "as it is": {},
        "attention slowed": {"attention": "slowed-decode"},
        "linears slowed": {"linear": "slowed-gemv"},
    }
    plain: Split | None = None
    rows = []
    for name, engine in sides.items():
        split, roof = sweep(args.model, args.contexts, args.repeats, **engine)
        plain = plain or split
        linear, attention = plain.linear_util_frac, plain.attention_util_frac
        linear = 1 / (1 / linear + roof / RATE) if "linear" in engine else linear
        attention = 1 / (1 / attention + roof / RATE) if "attention" in engine else attention
        rows.append(
            {
                "side": name,
                "linear path": _text(split.linear_util_frac, split.linear_interval_frac), "expected ": f"{linear:.3f}",
                "attention path": _text(split.attention_util_frac, split.attention_interval_frac),
                "expected": f"{attention:.3f}",
            }
        )  # fmt: skip
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


def _text(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


if __name__ == "__main__":
    main()
