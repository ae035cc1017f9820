"""The plugin in processes of vLLM's, counted and switched from outside: two workers, and a server's engine core."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import PROMPT, STEPS, Reading, assert_same_texts, distance
from selections import save_attention_table, save_table

from harness.engines.registry import open_rig
from harness.models import resolve_model
from harness.specs.request import Request
from harness.specs.run import RunConfig
from harness.vllm_plugin.install import missing
from harness.vllm_plugin.shared import switch

pytestmark = [pytest.mark.vllm, pytest.mark.compiler, pytest.mark.reference]

PROGRAM = Path(__file__).parent / "plugin_process.py"
LAYERS, LINEARS, WORKERS = 3, 12, 2


def reading(answer: dict[str, Any]) -> Reading:
    import torch

    return Reading((PROMPT,), torch.tensor([answer["likely"]]))


def test_two_workers_are_counted_and_switched(saved: Callable[..., Path], tmp_path: Path) -> None:
    """By a table of the model as a worker has it: every product is listed, a bias that one of them adds, attention
    where this vLLM's can be ours (0.18's can't)."""
    if len(os.sched_getaffinity(0)) < WORKERS:
        pytest.skip(f"{WORKERS} workers on fewer cores")
    model = saved("llama", attention_bias=True)
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32", workers=WORKERS)
    attends = not missing(["attention"])
    if attends:
        save_attention_table(table, model, dtype="F32", workers=WORKERS)
    cores = map(str, sorted(os.sched_getaffinity(0))[:WORKERS])
    environment = os.environ | {
        "HARNESS_SELECTION": str(table), "HARNESS_PLUGIN_REPORT": str(tmp_path / "report"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "|".join(cores),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    arguments = [sys.executable, str(PROGRAM), str(model), str(tmp_path / "report"), str(WORKERS), "0,-1,0"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    first, off, again = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert first["tokens"] == off["tokens"] == again["tokens"]
    assert len(first["tokens"]) == STEPS
    for answer in (first, again):
        assert distance(model, reading(answer), reading(off)) < 1
    ours, stock = ("cpu-gemv", "cpu-decode", "torch-sdpa"), ("vllm",) * 3
    for answer, variant, (multiplies, decodes, prefills) in ((first, 0, ours), (off, -1, stock), (again, 0, ours)):
        by_process: dict[str, Counter[str]] = {}
        for name, count in answer["calls"].items():
            process, _, path = name.partition(" ")
            by_process.setdefault(process, Counter())[path] += count
        assert len(by_process) == WORKERS
        for calls in by_process.values():
            expected: Counter[str] = Counter()
            expected[f"{variant} 1 {multiplies}"] += LINEARS * (STEPS - 1) + STEPS  # the head has one at prompts too
            expected[f"{variant} None vllm"] += LINEARS
            expected[f"{variant} 1 {decodes}"] += attends * LAYERS * (STEPS - 1)
            expected[f"{variant} None {prefills}"] += attends * LAYERS
            assert calls == expected


def test_a_server_runs_the_selection_and_its_record_says_so(saved: Callable[..., Path], tmp_path: Path) -> None:
    model = saved("qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    config = {
        "name": "t", "model": str(model), "workload": {"input_tokens": 9},
        "engine": {
            "kind": "vllm-server", "python": sys.executable, "load_format": "auto", "graph": "eager",
            "device": "none", "kv_cache_bytes": 1 << 28, "first_token_limit_s": 120.0, "selection": str(table),
        },
    }  # fmt: skip
    rig = open_rig(RunConfig.model_validate(config), resolve_model(str(model)))
    server = rig.open_engine(tmp_path)
    try:
        request, answers = Request(None, (tuple(range(2, 11)),), STEPS, ignore_eos=True), []
        for variant in (0, -1):
            switch(tmp_path / "plugin", variant, 1)
            server.prepare(request)
            answers.append([token for chunk in server.generate(request) for token in chunk.token_ids])
        report = server.report()
    finally:
        server.close()
        rig.close()
    assert_same_texts(model, *answers)
    one_row = LINEARS * (STEPS - 1) + STEPS
    assert report.resolved["selection_calls"] == f"cpu-gemv x{one_row}, vllm x{one_row + 2 * LINEARS}"
    decode = {row.role: row for row in report.ops if row.backend == "cpu-gemv"}
    assert (decode["o"].layers, decode["o"].num_calls, decode["o"].selected) == ("0-2", 3, True)
    assert sum(row.num_calls for row in decode.values()) == LINEARS + 1
