"""What `--build --model` compiles in one process, the engine's launches and the read probe's find in another."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import BASE, CASES

from harness.absent_card import compiling_for
from harness.models import resolve_model
from harness.specs.device import DeviceInfo
from harness.specs.run import NativeEngine

CARD = DeviceInfo(kind="cuda", name="some card", arch="sm_90", wave_width=32)
# Gates, norms of heads, a rotation of a part; 6 KiB a place: 350,000 of them fill 2 GiB.
MODEL = BASE | CASES["qwen3.5"] | {
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 400_000,
    "layer_types": ["full_attention", "linear_attention", *["full_attention"] * 2], "num_hidden_layers": 4,
    "dtype": "bfloat16",
}  # fmt: skip
ENGINE = NativeEngine(
    kind="native", linear="torch", attention="torch-sdpa", linear_attention="torch-recurrent", prefill_linear="torch",
    prefill_attention="torch-sdpa", prefill_linear_attention="torch-recurrent",
)  # fmt: skip
BUILD = """
import harness.prebuild
harness.prebuild.jobs_of_model = lambda *_: ([], [])  # those of backends are built in test_ahead.py
from harness.cli.main import main
main()
"""


@dataclass(frozen=True)
class Built:
    target: str
    model: Path
    rows: dict[str, dict]
    """By the first word of their names."""


@pytest.fixture(scope="module", params=["sm_90", "gfx90a"])
def built_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    model = tmp_path_factory.mktemp("model") / "config.json"
    model.write_text(json.dumps(MODEL))
    return Built(request.param, model, build_in_another_process(model, request.param))


@pytest.fixture
def built(built_once: Built, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache_beside(built_once.model)))
    return built_once


def cache_beside(model: Path) -> Path:
    return model.parent / "triton"


def build_in_another_process(model: Path, target: str) -> dict[str, dict]:
    arguments = ["backends", "--build", "--target", target, "--model", str(model), "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "NVCC": "none", "HIPCC": "none", "TRITON_CACHE_DIR": str(cache_beside(model))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {row["kernel"].split(" ")[0]: row for row in json.loads(done.stdout) if row["what"] == "triton"}


def run_steps(model: Path, max_context: int, *, has_memory: bool) -> None:
    """The elementwise launches of a decode step of two requests and of prompts of several lengths, as the rig binds."""
    import torch

    from harness.backends.base import Executor
    from harness.engines.native.decoder import Decoder
    from harness.engines.native.elementwise.triton_kernels import TritonElementwise
    from harness.engines.native.ops import OpTable
    from harness.engines.native.weights import blank_source, synthetic_source
    from harness.engines.native.workspace import Workspace

    spec, batch = resolve_model(str(model)).spec, 2 if has_memory else 1
    device = torch.device("cpu" if has_memory else "meta")
    source = synthetic_source(spec, spec.dtype, device, seed=0) if has_memory else blank_source(spec)
    workspace = Workspace(
        spec, OpTable(Executor(CARD), ENGINE, spec.dtype), TritonElementwise(), device, batch, max_context,
        max_rows=min(512, max_context), fuse=True, context=torch.zeros(1, dtype=torch.int64, device=device),
    )  # fmt: skip
    decoder = Decoder(source, workspace, prefill_chunk=min(512, max_context))
    steps = [decoder.decode_step(count + 1) for count in range(batch)]
    for num_tokens in (1, 40, 48):
        decoder.prefill([[0] * num_tokens], steps.append)
    launches = [bound.run for step in steps for bound in step.launches if bound.kind == "elementwise"]
    assert len(launches) > 60
    for launch in launches:
        launch()


def test_a_run_compiles_nothing_between_products_and_attention(built):
    row = built.rows["elementwise"]
    assert row["outcome"] == "built"
    with compiling_for(built.target) as found:
        run_steps(built.model, 300, has_memory=True)
        run_steps(built.model, 320, has_memory=True)
        small = len(found)
        run_steps(built.model, 360_000, has_memory=False)
        run_steps(built.model, 360_001, has_memory=False)
    # rmsnorm with a sum and without, silu_mul, sigmoid_mul; of the cache's kernel one a kind of m and a kind of places.
    assert small == 4 + 3 * 2
    assert len(found) == small + (6 if built.target == "gfx90a" else 0)
    assert not any(each.is_new for each in found)
    assert row["num_bytes"] == sum(each.num_bytes for each in found)


def test_the_probe_compiles_nothing(built):
    import torch

    from harness.triton_kernels import load_triton

    row = built.rows["read_probe"]
    assert row["outcome"] == "built" and row["shared_bytes"] > 0
    kernels = load_triton("read_probe")
    words, total = torch.empty(2**28 + 64, dtype=torch.int64), torch.empty(1, dtype=torch.int64)
    with compiling_for(built.target) as found:
        for config in kernels.CONFIGS:
            kernels.bind_read(words, total, config)()
            kernels.bind_copy(*words.chunk(2), config)()
            kernels.bind_write(words, 2**40 + 1, config)()
    assert len(found) == 3 * len({(config.block_words, config.num_warps) for config in kernels.CONFIGS}) + 3
    assert not any(each.is_new for each in found)
    assert row["num_bytes"] == sum(each.num_bytes for each in found)


def test_a_model_that_the_engine_does_not_run_has_its_reason(tmp_path):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(BASE | CASES["mixtral"] | {"dtype": "bfloat16"}))
    row = build_in_another_process(model, "sm_90")["elementwise"]
    assert row["outcome"] == "skipped" and "no experts on a GPU" in row["why"] and row["num_bytes"] is None
