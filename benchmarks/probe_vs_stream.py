"""Is the probe the best reader? Ours against a STREAM-like plain read: same threads, same buffer.

The best variant of a short sweep, the plain one-stream variant and the plain read take turns in one run.

    python benchmarks/probe_vs_stream.py [--rounds 20] [--buffer-mib 1200]
"""

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tabulate import tabulate

from harness.cpu_pool import CpuPool
from harness.devices.cpu import detect_cpu
from harness.kernel_build import load_kernel
from harness.probe.kernel_reader import KernelBuffer, KernelReader
from harness.probe.timing import describe, fastest, pass_s, rounds_s
from harness.stats import paired_ratio
from harness.units import gb_per_s

SWEEP_S = 4.0
Pass = Callable[[], float]


def stream_pass(buffer: KernelBuffer, pool: CpuPool) -> Pass:
    """Times one plain read of the buffer; its words are doubles here, whatever values their bits are."""
    library = load_kernel(Path(__file__).with_name("stream_read.cpp"), ("-ffast-math",))
    sums = (ctypes.c_double * pool.num_threads)()
    handle, address, count = (
        ctypes.c_void_p(pool.handle),
        ctypes.c_void_p(buffer.address),
        buffer.num_bytes // 8,
    )

    def run() -> float:
        begin_s = time.perf_counter()
        library.stream_read(handle, address, ctypes.c_size_t(count), sums)
        return time.perf_counter() - begin_s

    return run


def interleave(passes: dict[str, Pass], rounds: int) -> dict[str, list[float]]:
    """One time a contestant and round: there and back (A B C C B A), so that drift hits all alike."""
    times_s: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds):
        there = {name: run() for name, run in passes.items()}
        back = {name: passes[name]() for name in reversed(passes)}
        for name in passes:
            times_s[name].append((there[name] + back[name]) / 2)
    return times_s


def table(times_s: dict[str, list[float]], num_bytes: int, base: str) -> str:
    rows = []
    for name, own_s in times_s.items():
        ratio = paired_ratio(times_s[base], own_s)
        speeds = [gb_per_s(num_bytes / pick) for pick in (median(own_s), min(own_s), max(own_s))]
        rows.append([name, *speeds, f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"])
    return tabulate(rows, ["reader", "median", "fastest", "slowest", f"speed over {base} [95 %]"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--buffer-mib", type=int, help="default: four last-level caches")
    options = parser.parse_args()
    device = detect_cpu()
    default_mib = 4 * (device.last_level_cache_bytes or 1 << 28) >> 20
    with CpuPool() as pool:
        reader = KernelReader(pool)
        with reader.session():
            buffer = reader.allocate((options.buffer_mib or default_mib) << 20)
            sweep = rounds_s(buffer, [(variant, pool.num_threads) for variant in reader.variants], SWEEP_S)
            best, plain = fastest(sweep), (reader.variants[1], pool.num_threads)
            passes = {
                "plain read": stream_pass(buffer, pool),
                f"one stream: {plain[0]}": lambda: pass_s(buffer, plain),
                f"best: {best[0]}": lambda: pass_s(buffer, best),
            }
            times_s = interleave(passes, options.rounds)
    print(f"{device.name}, {pool.num_threads} threads, {buffer.num_bytes / 2**20:.0f} MiB; {describe(best)}\n")
    print(
        tabulate([[p.variant, gb_per_s(p.read_bytes_per_s)] for p in sweep], ["variant, sweep", "median"]),
        "\n",
    )
    print(table(times_s, buffer.num_bytes, "plain read"))


if __name__ == "__main__":
    main()
