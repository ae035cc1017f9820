"""How far are a client's figures from the truth? Ours, and those of `vllm bench serve` where vLLM is installed.

A scripted server in another process stamps the monotonic clock, which all processes of a machine share, just before
each send. So for every request the truth is known: from the request's arrival to the first token's sending, and from
each sending to the next. What a client's figures have beyond that is its own error, the loopback's included.

    python benchmarks/client_truth.py [--requests 50] [--tokens 100] [--vllm PYTHON]
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scripted_answers import Running, answer, scripted_server
from tabulate import tabulate

from harness.client.connection import clock_s
from harness.client.requests import Client, request_body
from harness.specs.request import Chunk, Request
from harness.specs.run import OpenAIEngine

FIRST_S, NEXT_S = 0.05, 0.01
TTFT_LIMIT_S, ITL_LIMIT_S, TPOT_LIMIT_FRAC = 1e-3, 1e-3, 1e-3
"""What errors stay below: of TTFT, of each ITL, and of TPOT as a share of it."""
TTFT_MEDIAN_AIM_S, ITL_P99_AIM_S = 0.5e-3, 0.3e-3
"""What they are to stay below on a machine with nothing else to do."""


@dataclass(frozen=True)
class Times:
    """One request: by the server's stamps, or by a client's."""

    ttft_s: float
    itl_s: tuple[float, ...]

    @property
    def tpot_s(self) -> float:
        return sum(self.itl_s) / len(self.itl_s)

    @classmethod
    def between(cls, start_s: float, tokens_s: Sequence[float]) -> "Times":
        return cls(tokens_s[0] - start_s, tuple(b - a for a, b in pairwise(tokens_s)))


@dataclass(frozen=True)
class Errors:
    """A client's figures minus the truth, over all requests."""

    ttft_s: np.ndarray
    itl_s: np.ndarray
    tpot_frac: np.ndarray

    @classmethod
    def of(cls, found: Sequence[Times], truth: Sequence[Times]) -> "Errors":
        pairs = list(zip(found, truth, strict=True))
        return cls(
            np.array([a.ttft_s - b.ttft_s for a, b in pairs]),
            np.array([x - y for a, b in pairs for x, y in zip(a.itl_s, b.itl_s, strict=True)]),
            np.array([a.tpot_s / b.tpot_s - 1 for a, b in pairs]),
        )

    def is_exact(self, percentile: float) -> bool:
        """At so many per cent of all errors: at 99 on a quiet machine, at fewer on a busy one."""
        limits = ((self.ttft_s, TTFT_LIMIT_S), (self.itl_s, ITL_LIMIT_S), (self.tpot_frac, TPOT_LIMIT_FRAC))
        return all(np.percentile(abs(errors), percentile) < limit for errors, limit in limits)

    @property
    def reaches_aim(self) -> bool:
        return bool(
            abs(np.median(self.ttft_s)) < TTFT_MEDIAN_AIM_S and np.percentile(abs(self.itl_s), 99) < ITL_P99_AIM_S
        )

    def judged(self) -> str:
        """What the table comes down to."""
        limits = "below 1 ms and 0.1 % at p99" if self.is_exact(99) else "NOT below 1 ms and 0.1 % at p99"
        aim = f"{1e3 * TTFT_MEDIAN_AIM_S} ms of TTFT in the median and {1e3 * ITL_P99_AIM_S} ms of ITL at p99"
        return f"{limits}; {'within' if self.reaches_aim else 'NOT within'} {aim}"

    def row(self, name: str) -> list[str]:
        def middle_and_tail(values: np.ndarray) -> list[str]:
            return [f"{1e3 * np.median(values):+.3f}", f"{1e3 * np.percentile(abs(values), 99):.3f}"]

        worst = f"{100 * abs(self.tpot_frac).max():.4f}"
        return [name, *middle_and_tail(self.ttft_s), *middle_and_tail(self.itl_s), worst]


BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` without the command, which some builds can't start: they are not installed under that name."""
HEADERS = ("client", "TTFT median, ms", "TTFT p99, ms", "ITL median, ms", "ITL p99, ms", "TPOT largest, %")


def truth_of(told: dict[str, Any], num_tokens: int) -> Times:
    """From what the server wrote of a request: its first num_tokens pieces carry a token each."""
    return Times.between(told["received_s"], told["sent_s"][:num_tokens])


def ours(server: Running, num_requests: int, num_tokens: int) -> tuple[list[Times], list[Times]]:
    """(figures, truth) of our client."""
    engine = OpenAIEngine(kind="openai", url=server.url)
    client, found, truth = Client(engine), [], []
    for index in range(num_requests):
        body = request_body(engine, "m", Request(None, ((index, 1, 2),), num_tokens, ignore_eos=True))
        with client.connect() as exchange:
            sent_s = clock_s()
            client.send(exchange, body)
            chunks: list[Chunk] = list(client.chunks(exchange, num_tokens))
        found.append(Times.between(sent_s, [chunk.time_s for chunk in chunks if chunk.token_ids]))
        truth.append(truth_of(server.told(), num_tokens))
    return found, truth


def tokenizer(folder: Path) -> str:
    """A thousand words: the tool draws its prompts from a tokenizer."""
    words = {f"w{number}": number for number in range(1000)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    whole = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def official(
    python: str, server: Running, num_requests: int, num_tokens: int, folder: Path
) -> tuple[list[Times], list[Times]]:
    """(figures, truth) of `vllm bench serve`, on random prompts without a tokenizer's part in their times."""
    command = [
        python, "-c", BENCH_SERVE, "--backend", "openai", "--base-url",
        server.url.removesuffix("/v1"), "--endpoint", "/v1/completions", "--model", "m",
        "--tokenizer", tokenizer(folder),
        "--dataset-name", "random", "--random-input-len", "8", "--random-output-len", str(num_tokens),
        "--num-prompts", str(num_requests), "--max-concurrency", "1", "--num-warmups", "0",
        "--ready-check-timeout-sec", "0", "--save-result", "--save-detailed", "--result-dir", str(folder),
        "--result-filename", "result.json", "--disable-tqdm",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads((folder / "result.json").read_text())
    asked = [server.told() for _ in range(num_requests)]
    found = [Times(ttft, tuple(itls)) for ttft, itls in zip(result["ttfts"], result["itls"], strict=True)]
    return found, [truth_of(told, num_tokens) for told in asked]


def measured(args: argparse.Namespace) -> Iterator[tuple[str, Errors]]:
    """Each client by its name."""
    script = [answer([FIRST_S, *[NEXT_S] * (args.tokens - 1)])]
    with tempfile.TemporaryDirectory() as folder, scripted_server(Path(folder), script) as server:
        yield "harness", Errors.of(*ours(server, args.requests, args.tokens))
        if args.vllm:
            found, truth = official(args.vllm, server, args.requests, args.tokens, Path(folder))
            yield "vllm bench serve", Errors.of(found, truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--vllm", help="a Python that has vLLM; without, ours alone")
    args = parser.parse_args()
    if args.requests < 1 or args.tokens < 2:
        parser.error("at least 1 request of 2 tokens: an error needs something to be of")
    if args.vllm and shutil.which(args.vllm) is None:
        parser.error(f"--vllm: {args.vllm} is no program")
    found = list(measured(args))
    print(tabulate([errors.row(name) for name, errors in found], HEADERS, tablefmt="github", disable_numparse=True))
    for name, errors in found:
        print(f"{name}: {errors.judged()}")


if __name__ == "__main__":
    main()
