"""vLLM's variables, by the harness's side alone: no vLLM is needed."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bench import engine_traffic, run_bench
from harness.engines import vllm_setup
from harness.engines.vllm_inproc import variables
from harness.engines.vllm_inproc.variables import Variables, bound_cores
from harness.errors import ConfigError, UnavailableError
from harness.models import resolve_model
from harness.specs.run import RunConfig
from harness.specs.vllm import VllmEngine

BINDING = "VLLM_CPU_OMP_THREADS_BIND"


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (variables, vllm_setup):
        monkeypatch.setattr(module, "physical_cores", lambda: [0, 2, 4, 6])
    monkeypatch.delenv(BINDING, raising=False)
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    yield


def engine(**fields: Any) -> VllmEngine:
    return VllmEngine.model_validate({"kind": "vllm", **fields})


def config(**fields: Any) -> RunConfig:
    values = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "vllm", **fields}, "workload": {"input_tokens": 4},
    }  # fmt: skip
    return RunConfig.model_validate(values)


def test_they_are_set_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "mine")
    before = dict(os.environ)
    ours = Variables(engine(environment={"VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOGGING_STREAM": "other"}))
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"
    assert os.environ["VLLM_LOGGING_STREAM"] == "other"
    os.environ["LEFT_BY_VLLM"] = "1"
    ours.restore()
    assert dict(os.environ) == before


def test_the_shell_goes_before_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    ours = Variables(engine())
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "but the engine has to be in this process"
    ours.restore()


@pytest.mark.parametrize(
    ("fields", "binding"),
    [
        ({}, "0,2,4,6"),
        ({"tensor_parallel": 2}, "0,2|4,6"),
        ({"tensor_parallel": 2, "pipeline_parallel": 4}, "nobind"),
        ({"environment": {BINDING: "1-3"}}, "1-3"),
    ],
)
def test_all_cores_are_dealt_out(fields: dict[str, Any], binding: str) -> None:
    ours = Variables(engine(**fields))
    assert os.environ[BINDING] == binding
    ours.restore()


@pytest.mark.parametrize(
    ("binding", "cores"), [("0,2-4", [0, 2, 3, 4]), ("nobind", None), ("auto", [0, 2, 4, 6]), ("5", [5])]
)
def test_the_binding_is_read(monkeypatch: pytest.MonkeyPatch, binding: str, cores: list[int] | None) -> None:
    monkeypatch.setenv(BINDING, binding)
    assert bound_cores() == cores


@pytest.mark.parametrize("binding", ["all", "", "0|1", "1-2-3"])
def test_a_binding_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, binding: str) -> None:
    monkeypatch.setenv(BINDING, binding)
    with pytest.raises(ConfigError, match="write cores such as"):
        bound_cores()


@pytest.mark.parametrize("has_folder", [False, True])
def test_without_vllm_two_lines_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool) -> None:
    """A folder of that name somewhere on the path is found as a package, and is none."""
    if has_folder:
        (tmp_path / "vllm").mkdir()
        monkeypatch.setattr("sys.path", [str(tmp_path)])
        assert importlib.util.find_spec("vllm") is not None
    else:
        monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(__import__("sys").modules, "vllm", raising=False)
    with pytest.raises(UnavailableError, match="vLLM is not installed here"):
        run_bench(config(load_format="dummy"), tmp_path, lambda line: None)


def test_the_traffic_is_of_the_type_that_vllm_holds() -> None:
    model = resolve_model("qwen3-0.6b")
    own, wide = (engine_traffic(config(**fields), model) for fields in ({}, {"dtype": "float32"}))
    assert wide.weight_read_bytes == 2 * own.weight_read_bytes
    assert wide.kv_bytes_per_context_token == 2 * own.kv_bytes_per_context_token
