"""vLLM's settings: what they become, and what is refused."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config_io import load_yaml_model
from harness.errors import ConfigError
from harness.resources import find_config
from harness.specs import vllm as specs
from harness.specs.run import RunConfig
from harness.specs.vllm import VllmEngine, VllmOptions


def test_what_is_null_is_left_to_vllm() -> None:
    assert VllmOptions().arguments("F32") == {
        "dtype": "float32", "load_format": "auto", "enable_prefix_caching": False, "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1, "seed": 0,
    }  # fmt: skip


def test_what_is_set_gets_vllms_names() -> None:
    options = VllmOptions(
        dtype="float16", max_model_len=99, executor="mp", kv_cache_bytes=7, tensor_parallel=2, pipeline_parallel=3,
        extra_args={"block_size": 32},
    )  # fmt: skip
    arguments = options.arguments("BF16")
    assert arguments["dtype"] == "float16"
    assert arguments["max_model_len"] == 99
    assert arguments["distributed_executor_backend"] == "mp"
    assert arguments["kv_cache_memory_bytes"] == 7
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (2, 3)
    assert arguments["block_size"] == 32
    assert options.world_size == 6
    assert options.held_dtype("BF16") == "F16"


@pytest.mark.parametrize(
    ("graph", "arguments"),
    [
        ("eager", {"enforce_eager": True}),
        ("compiled", {"compilation_config": {"cudagraph_mode": "NONE"}}),
        ("full", {"compilation_config": {"cudagraph_mode": "FULL"}}),
        ("full-and-piecewise", {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}}),
    ],
)
def test_graph_modes(graph: Any, arguments: dict[str, Any]) -> None:
    assert VllmOptions(graph=graph).arguments("BF16").items() >= arguments.items()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"extra_args": {"max_model_len": 5}}, "set max_model_len"),
        ({"extra_args": {"tensor_parallel_size": 2}}, "set tensor_parallel"),
        ({"extra_args": {"enforce_eager": True}}, "set graph"),
        ({"extra_args": {"model": "x"}}, "the run's model"),
        ({"extra_args": {"quantization": "fp8"}}, "count it wrongly"),
        ({"extra_args": {"kv_cache_dtype": "fp8"}}, "count it wrongly"),
        ({"extra_args": {"--block-size": 32}}, "pattern"),
        (
            {"selection": "t.yaml", "environment": {"HARNESS_SELECTION": "u.yaml"}},
            "HARNESS_SELECTION is the harness's own",
        ),
        ({"selection": "t.yaml", "extra_args": {"worker_extension_cls": "x"}}, "the harness's own"),
        ({"extra_args": {"port": 8000}}, "set url and served_model of the kind openai"),
        ({"extra_args": {"served_model_name": "x"}}, "set url and served_model"),
        ({"extra_args": {"api_key": "x"}}, "set api_key_env"),
        ({"extra_args": {"hf_token": "x"}}, "hf_token may be a secret"),
        ({"graph": "full", "extra_args": {"compilation_config": {}}}, "give one of them"),
        ({"graph": "FULL"}, "full"),
        ({"environment": {"HF_TOKEN": "x"}}, "may be a secret"),
        ({"environment": {"NO GOOD": "x"}}, "pattern"),
        ({"environment": {"VLLM_CPU_KVCACHE_SPACE": 1}}, "valid string"),
        ({"gpu_memory_utilization": 0}, "greater than 0"),
        ({"tensor_parallel": True}, "valid integer"),
        ({"environment": {"LD_PRELOAD": "x"}}, "in front of the harness"),
        ({"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}, "vllm-server"),
    ],
)
def test_refusals(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        VllmEngine.model_validate({"kind": "vllm", **fields})


def test_tokens_are_no_secrets() -> None:
    VllmOptions(extra_args={"enable_prompt_tokens_details": True, "max_num_partial_prefills": 2, "tokenizer": "x"})


def test_a_refusal_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: x\nmodel: qwen3-0.6b\nworkload: {input_tokens: 4}\nengine:\n  kind: vllm\n  extra_args:\n    seed: 3\n"
    )
    with pytest.raises(ConfigError, match=r"run\.yaml:\d: engine\.extra_args: seed has a place of its own"):
        load_yaml_model(file, RunConfig)


def test_the_committed_run_is_valid() -> None:
    config = load_yaml_model(find_config("runs", "qwen3-0.6b-vllm", "{name}.yaml"), RunConfig)
    assert isinstance(config.engine, VllmEngine)


@pytest.mark.vllm
def test_vllm_has_every_argument_and_graph_mode() -> None:
    arguments = importlib.import_module("vllm").EngineArgs.__dataclass_fields__
    assert set(specs._ARGUMENTS.values()) <= set(arguments)
    assert set(specs._CHANGES_BYTES) <= set(arguments)
    modes = importlib.import_module("vllm.config").CUDAGraphMode.__members__
    for graph in ("compiled", "piecewise", "full", "full-decode-only", "full-and-piecewise"):
        config = VllmOptions(graph=graph).arguments("BF16")["compilation_config"]
        assert isinstance(config, dict)
        assert config["cudagraph_mode"] in modes
