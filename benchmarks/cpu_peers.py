"""Our decode beside its peers on the same shape: transformers, vLLM CPU and llama.cpp, where they are installed.

Each engine is a process of its own that loads the model and then decodes a block of tokens when it is told to, so that
engines can take turns (A B C, C B A, ...) and a machine that drifts drifts for all. Before each block the probe reads.
Printed: ms a token (median of blocks), utilization against the probe beside each block, ratio to ours.

    python benchmarks/cpu_peers.py [--model qwen3-0.6b] [--blocks 6] [--tokens 32]
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tabulate import tabulate

from harness.ab.interleave import turning_order
from harness.cpu_pool import CpuPool
from harness.devices.cpu import detect_cpu
from harness.figures import reading_rate
from harness.models import resolve_model
from harness.probe.cpu import open_cpu_probe
from harness.resources import find_config
from harness.specs.run import ProbeConfig, RunConfig
from harness.stats import paired_ratio
from harness.traffic import decode_traffic

PROMPT_TOKENS = 32
Block = Callable[[], float]
"""Decodes a block of tokens, returns seconds a token."""


def native(model: str, tokens: int) -> Block:
    """Ours: default backends."""
    from harness.bench import random_ids
    from harness.engines.base import Request
    from harness.engines.native.rig import NativeRig

    workload = {"input_tokens": PROMPT_TOKENS, "output_tokens": tokens + 1}
    engine = {"kind": "native", "weights": "synthetic", "device": "cpu"}
    config = RunConfig.model_validate({"name": "peer", "model": model, "engine": engine, "workload": workload})
    resolved = resolve_model(model)
    rig = NativeRig(config, resolved)
    decoding = rig.open_engine()

    def block() -> float:
        ids = random_ids(resolved, PROMPT_TOKENS, str(time.time_ns()))
        times = [chunk.time_s for chunk in decoding.generate(Request(None, ids, tokens + 1, True))]
        return (times[-1] - times[0]) / tokens

    return block


def transformers(model: str, tokens: int) -> Block:
    """Hugging Face's eager model with its static cache off, as `generate` runs it by default."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(find_config("models", model, "{name}/config.json").parent)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network = network.to_empty(device="cpu").eval()
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.02)
    network.tie_weights()
    for buffer_name, buffer in network.named_buffers():
        if "inv_freq" in buffer_name:  # made on meta: rotary frequencies must be real numbers, whatever they are
            buffer.data.copy_(1.0 / (1e6 ** (torch.arange(buffer.numel()) / buffer.numel())))

    @torch.inference_mode()
    def block() -> float:
        past = network(torch.randint(0, config.vocab_size, (1, PROMPT_TOKENS)), use_cache=True)
        token, cache = past.logits[:, -1:].argmax(-1), past.past_key_values
        started = time.perf_counter()
        for _ in range(tokens):
            out = network(token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        return (time.perf_counter() - started) / tokens

    return block


def vllm(model: str, tokens: int) -> Block:
    """vLLM CPU in process, compiled, both cores; start it with libiomp5 preloaded for its best."""
    import os

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    folder = str(find_config("models", model, "{name}/config.json").parent)
    llm = LLM(
        folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=1024, max_num_seqs=1,
        enable_prefix_caching=False, disable_log_stats=False, seed=0,
    )  # fmt: skip

    def timed(count: int) -> float:
        sampling = SamplingParams(temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False)
        ids = [int(time.time_ns() // 7**i % 10000) for i in range(PROMPT_TOKENS)]
        started = time.perf_counter()
        llm.generate({"prompt_token_ids": ids}, sampling, use_tqdm=False)
        return time.perf_counter() - started

    return lambda: (timed(tokens + 1) - timed(1)) / tokens


def llama_cpp(model: str, tokens: int) -> Block:
    """llama.cpp's Python package on a GGUF of the same shape, named by HARNESS_PEER_GGUF."""
    import os

    from llama_cpp import Llama  # type: ignore[import-not-found]

    llm = Llama(os.environ["HARNESS_PEER_GGUF"], n_ctx=1024, verbose=False)

    def block() -> float:
        llm.reset()
        llm.eval([int(time.time_ns() // 7**i % 10000) for i in range(PROMPT_TOKENS)])
        started = time.perf_counter()
        for step in range(tokens):
            llm.eval([step + 7])
        return (time.perf_counter() - started) / tokens

    return block


PEERS: dict[str, tuple[str, Callable[[str, int], Block]]] = {
    "native": ("torch", native),
    "transformers": ("transformers", transformers),
    "vllm": ("vllm", vllm),
    "llama.cpp": ("llama_cpp", llama_cpp),
}


def serve(peer: str, model: str, tokens: int) -> None:
    """The engine's process: a line `ready`, then a block for each line that comes in."""
    block = PEERS[peer][1](model, tokens)
    block()  # warm-up
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(block()), flush=True)


class Worker:
    """A peer's process, told when its turn is."""

    def __init__(self, peer: str, model: str, tokens: int) -> None:
        command = [sys.executable, __file__, "--serve", peer, "--model", model, "--tokens", str(tokens)]
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - lives as long as the worker
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def wait_ready(self) -> bool:
        assert self.process.stdout is not None
        return any(line.strip() == "ready" for line in self.process.stdout)

    def block_s(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def last_words(self) -> str:
        self.log.seek(0)
        return (self.log.read().strip().splitlines() or ["no output"])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--serve", choices=PEERS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.tokens)
        return
    compare(options.model, options.blocks, options.tokens)


def compare(model: str, blocks: int, tokens: int) -> None:
    workers: dict[str, Worker] = {}
    for peer, (package, _) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{peer}: not installed", file=sys.stderr)
            continue
        worker = Worker(peer, model, tokens)
        if worker.wait_ready():
            workers[peer] = worker
        else:
            print(f"{peer}: did not start: {worker.last_words()}", file=sys.stderr)
    resolved = resolve_model(model)
    traffic = decode_traffic(resolved.spec, resolved.tensors, resolved.tensors_source)
    step_bytes = traffic.step_bytes(PROMPT_TOKENS + tokens // 2)
    rows: list[dict[str, Any]] = []
    with CpuPool() as pool:
        probe = open_cpu_probe(ProbeConfig(survey_s=6.0, reading_s=0.2), pool, detect_cpu())
        probe.survey(step_bytes)
        times: dict[str, list[float]] = {peer: [] for peer in workers}
        utils: dict[str, list[float]] = {peer: [] for peer in workers}
        for _, peer in turning_order(list(workers), blocks):
            roof = reading_rate(probe.read())
            times[peer].append(workers[peer].block_s())
            utils[peer].append(step_bytes / roof / times[peer][-1])
        probe.close()
    for peer in workers:
        ratio = paired_ratio(times[peer], times["native"])
        rows.append(
            {
                "engine": peer, "ms a token": f"{statistics.median(times[peer]) * 1e3:.1f}",
                "of the probe": f"{statistics.median(utils[peer]):.3f}",
                "times ours": f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", "blocks": blocks,
            }
        )  # fmt: skip
        workers[peer].process.kill()
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
