"""How near do the chosen CPU backends come to the roof, and is any library's faster? On the shapes of several models.

Each model's products, its attention and, where it has one, its delta rule go through `harness ab`. The roof of a shape
is the faster of the probe beside it and the fastest verified kernel of the model's A/B, which enters as its ratio to
the probe beside that one.

    python benchmarks/cpu_backends.py [--models qwen3-0.6b ...] [--context 8192] [--chunk 512]
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from tabulate import tabulate

from harness.ab.compare import run_ab
from harness.errors import ConfigError
from harness.specs.ab import AbConfig, AbRow
from harness.specs.problem import LinearProblem

MODELS = ("smollm2-135m-instruct", "qwen3-0.6b", "qwen3-1.7b", "qwen3.5-1b-scaled")
OURS = ("cpu-gemv", "cpu-decode", "cpu-recurrent", "torch-widened")
SMALL_BYTES = 1 << 20
"""Smaller weights wait for launches and threads, not for memory."""
HEADERS = ("problem", "MiB", "chosen", "GB/s", "of probe", "of roof", "of peak", "best of the libraries", "times it")


def compared(config: AbConfig) -> list[list[AbRow]]:
    """Timed rows by problem, the fastest first."""
    with TemporaryDirectory() as folder:
        _, record = run_ab(config, Path(folder), lambda line: None)
    by_shape: dict[str, list[AbRow]] = {}
    for row in record.rows:
        if row.call_s is not None:
            by_shape.setdefault(row.shape, []).append(row)
    return [sorted(rows, key=lambda row: row.call_s or 0.0) for rows in by_shape.values()]


def is_large(row: AbRow) -> bool:
    return not isinstance(row.problem, LinearProblem) or (row.read_bytes or 0) > SMALL_BYTES


def line(rows: list[AbRow], kernel_ratio: float) -> list[str]:
    """The fastest of a problem beside the fastest library."""
    chosen = rows[0]
    library = next((row for row in rows if row.backend not in OURS), None)
    share = "-" if chosen.probe_frac is None else f"{chosen.probe_frac:.3f}"
    roof = "-" if chosen.probe_frac is None else f"{chosen.probe_frac / kernel_ratio:.3f}"
    times = "-" if library is None else f"{(library.call_s or 0) / (chosen.call_s or 1):.2f}"
    return [
        chosen.shape, f"{(chosen.read_bytes or 0) / 2**20:.1f}", chosen.label, f"{(chosen.bytes_per_s or 0) / 1e9:.1f}",
        share, roof, "-" if chosen.peak_frac is None else f"{chosen.peak_frac:.2f}",
        "-" if library is None else library.label, times,
    ]  # fmt: skip


def configs(model: str, context: int, chunk: int, blocks: int) -> list[AbConfig]:
    rounds = {"min_blocks": blocks, "max_blocks": blocks}
    return [
        AbConfig(op="linear", model=model, **rounds),
        AbConfig(op="attention", model=model, contexts=(context,), chunks=(1,), **rounds),
        AbConfig(op="attention", model=model, contexts=(chunk, 4 * chunk), chunks=(chunk,), **rounds),
        AbConfig(op="linear-attention", model=model, chunks=(1, chunk), **rounds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=12)
    args = parser.parse_args()
    for model in args.models:
        problems: list[list[AbRow]] = []
        for config in configs(model, args.context, args.chunk, args.blocks):
            try:
                problems += compared(config)
            except ConfigError as error:  # a model without the operation
                print(f"{model}: {error.what}")
        ratio = max([1.0, *(row.probe_frac or 0.0 for rows in problems for row in rows)])
        table = [line(rows, ratio) for rows in problems if is_large(rows[0])]
        print(f"\n{model}; the fastest kernel reads at {ratio:.3f} of the probe beside it\n")
        print(tabulate(table, HEADERS, tablefmt="github", disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
