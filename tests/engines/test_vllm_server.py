"""A server of vLLM's that the harness starts, with a stand-in for vLLM: its command, its record, its ends."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError
from scripted_answers import answer

from harness.bench import run_bench
from harness.engines.vllm_server import command_line
from harness.engines.vllm_setup import NO_SHARED_ROOF
from harness.errors import ConfigError, HarnessError, MeasurementError, UnavailableError
from harness.records import find_run
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig

TOKENS = 40
STAND_IN = Path(__file__).with_name("stand_in_vllm.py")
INFO = {
    "vllm_config": {
        "model_config": {"dtype": "torch.bfloat16", "max_model_len": 100},
        "scheduler_config": {"enable_chunked_prefill": True},
        "compilation_config": {"mode": 3, "backend": "inductor", "cudagraph_mode": [2, 1]},
        "attention_config": {"backend": "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"},
        "cache_config": {"gpu_memory_utilization": 0.8},
    }
}


def bench(folder: Path, script: dict[str, Any] | None = None, **engine: Any) -> RunRecord:
    """The first answer is the warm-up's."""
    python = folder / "python"  # the interpreter that engine.python names: `-m vllm...` means nothing to it
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {STAND_IN} "$@"\n')
    python.chmod(0o755)
    script = {"answers": [answer([0.001] * TOKENS)], "gets": {"/server_info?config_format=json": INFO}} | (script or {})
    settings = {"kind": "vllm-server", "python": str(python), "load_format": "dummy", "device": "none", **engine}
    settings["environment"] = {"STAND_IN": json.dumps(script)} | settings.get("environment", {})
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": settings,
        "workload": {"input_tokens": 8, "output_tokens": TOKENS, "repeats": 2},
    }  # fmt: skip
    return run_bench(RunConfig.model_validate(config), folder / "runs", lambda line: None)[1]


def log(folder: Path) -> str:
    return (find_run(folder / "runs", "-t-") / "server.log").read_text()


def told(folder: Path, what: str) -> Any:
    line = next(line for line in log(folder).splitlines() if line.startswith(what))
    return json.loads(line.removeprefix(what))


def orphans() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if STAND_IN.name in " ".join(p.info["cmdline"] or ())]


@pytest.fixture(autouse=True)
def _no_orphan() -> Any:
    assert not orphans()
    yield
    assert not orphans()


def test_a_run_against_a_server_of_ours(tmp_path: Path) -> None:
    record = bench(tmp_path, graph="eager", max_model_len=100, extra_args={"kv_events_config": {"a": 1}})
    assert record.status == "done" and record.engine is not None
    assert [r.num_output_tokens for r in record.requests] == [TOKENS] * 2
    assert record.engine.kind == "vllm-server" and record.engine.load_s is not None and not record.engine.notes
    resolved = record.engine.resolved
    assert str(resolved["id"]).startswith("harness-")
    assert {key: resolved[key] for key in ("dtype", "enable_chunked_prefill", "compilation_mode", "seed")} == {
        "dtype": "bfloat16", "enable_chunked_prefill": True, "compilation_mode": "VLLM_COMPILE",
        "seed": None,
    }  # fmt: skip
    assert (resolved["compilation_backend"], resolved["cudagraph_mode"]) == ("inductor", "FULL_AND_PIECEWISE")
    assert str(resolved["attention_backend"]).endswith("FlashAttentionBackend")
    assert resolved["gpu_memory_utilization"] == 0.8
    words = told(tmp_path, "command")
    assert "--enforce-eager" in words and "--no-enable-prefix-caching" in words and "--skip-tokenizer-init" in words
    assert words[words.index("--kv-events-config") + 1] == '{"a": 1}'
    assert words[words.index("--host") + 1] == "127.0.0.1"


def test_our_variables_yield_to_the_shells_and_these_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    monkeypatch.setenv("VLLM_API_KEY", "x")  # nobody would send it
    bench(tmp_path, environment={"VLLM_CPU_KVCACHE_SPACE": "3"})
    variables = told(tmp_path, "variables")
    assert variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "1" and variables["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert variables["VLLM_NO_USAGE_STATS"] == "1" and variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_API_KEY" not in variables


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"exit code 1; its log ends: .*no memory left"):
        bench(tmp_path, {"fail": "no memory left"})


def test_one_that_is_never_ready(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"not ready within 0\.5 s"):
        bench(tmp_path, {"slow": True}, start_limit_s=0.5)


def test_one_that_dies_within_an_answer(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"exit code 3: .*; its log ends: .*the engine core died") as caught:
        bench(tmp_path, {"die_after": 5})
    assert caught.value.exit_code == 4


def test_a_request_that_fails_while_the_server_lives_blames_it_not(tmp_path: Path) -> None:
    answers = [answer([0.001] * TOKENS), {"status": 500, "body": "no"}]
    with pytest.raises(MeasurementError, match="all 2 requests failed; the first: the server answers 500") as caught:
        bench(tmp_path, {"answers": [answers[0], answers[1], answers[1]]})
    assert "log ends" not in caught.value.what


@pytest.mark.torch
@pytest.mark.parametrize("elsewhere", [{"executor": "ray"}, {"extra_args": {"nnodes": 2, "node_rank": 0}}])
def test_several_machines_have_no_roof_and_the_record_says_so(tmp_path: Path, elsewhere: dict[str, Any]) -> None:
    record = bench(tmp_path, device="cpu", tensor_parallel=2, **elsewhere)
    assert record.analysis is not None and record.analysis.roof_read_bytes_per_s is None
    assert record.engine is not None and record.engine.notes == (NO_SHARED_ROOF,)


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"its log ends: .*No such file"):
        bench(tmp_path, python=str(tmp_path / "nothing"))


def test_a_model_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no weights of qwen3-0\.6b"):
        bench(tmp_path, load_format="auto")


@pytest.mark.parametrize(
    "engine, what",
    [
        ({"extra_args": {"seed": 1}}, "seed has a place of its own"),
        ({"environment": {"HF_TOKEN": "x"}}, "may be a secret"),
        ({"api": "tgi"}, "completions"),
        ({"start_limit_s": 0}, "start_limit_s"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, engine: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        bench(tmp_path, **engine)


def test_the_command_line() -> None:
    given: dict[str, Any] = {"a_b": 1, "on": True, "off": False, "nothing": None, "made_of": {"x": [1]}, "name": "y"}
    assert command_line(given) == ["--a-b", "1", "--on", "--no-off", "--made-of", '{"x": [1]}', "--name", "y"]
