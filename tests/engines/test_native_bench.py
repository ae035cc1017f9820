"""Whole runs of the native engine on tiny models: structure, counts, refusals. No speed, no verdict."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.bench import run_bench  # noqa: E402
from harness.errors import CheckpointError, ConfigError, UnavailableError  # noqa: E402
from harness.records import load_events  # noqa: E402
from harness.specs.event import ChunkEvent, KernelReadEvent, ProbeEvent  # noqa: E402
from harness.specs.record import RunRecord  # noqa: E402
from harness.specs.run import RunConfig  # noqa: E402

pytestmark = pytest.mark.torch

HF = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 131, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16", "eos_token_id": 1,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A config.json alone: the engine draws the weights."""
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(HF))
    return path


def run(
    model: Path, runs: Path, engine: dict[str, Any] | None = None, every_s: float | None = 2.0, **workload: Any
) -> tuple[Path, RunRecord, str]:
    config = {
        "name": "tiny", "model": str(model),
        "engine": {"kind": "native", "device": "cpu", "weights": "synthetic", **(engine or {})},
        "workload": {"input_tokens": 9, "output_tokens": 40, "repeats": 2, "warmup_tokens": 2, **workload},
        "probe": {"buffer_bytes": 1 << 20, "survey_s": 0.1, "reading_s": 0.001, "every_s": every_s},
    }  # fmt: skip
    return run_bench(RunConfig.model_validate(config), runs, lambda line: None)


def test_a_run_records_what_ran(model: Path, tmp_path: Path) -> None:
    folder, record, _ = run(model, tmp_path)
    events = load_events(folder)
    assert record.status == "done"
    assert sum(isinstance(event, ChunkEvent) for event in events) == 2 * 40
    assert sum(isinstance(event, ProbeEvent) for event in events) == 2 * 2
    assert any(isinstance(event, KernelReadEvent) for event in events)
    times = [event.time_s for event in events if isinstance(event, ChunkEvent) and event.repeat == 0]
    assert times == sorted(times)
    assert record.engine is not None
    rows = {(op.op, op.phase, op.role): op for op in record.engine.ops}
    assert {role for op, phase, role in rows if op == "linear" and phase == "decode"} == {
        "qkv",
        "o",
        "gate_up",
        "down",
        "lm_head",
    }
    assert rows["linear", "decode", "qkv"].layers == "0-1"
    assert rows["linear", "decode", "lm_head"].layers == "model"
    assert ("attention", "prefill", "prefill") in rows
    assert record.analysis is not None
    assert record.analysis.outside_kernels_frac is not None
    assert record.analysis.tensors_source == "config"


def test_a_pause_after_every_token_changes_no_token(model: Path, tmp_path: Path) -> None:
    """The probe reads on the engine's own threads, in the middle of its request, and gives them back as they were."""
    cpus = os.sched_getaffinity(0)
    paused, _, _ = run(model, tmp_path, every_s=1e-9)
    assert os.sched_getaffinity(0) == cpus
    alone, _, _ = run(model, tmp_path, every_s=None)
    kinds = [Counter(event.event for event in load_events(folder)) for folder in (paused, alone)]
    assert (kinds[0]["pause"], kinds[1]["pause"]) == (2 * 40, 0)
    assert kinds[0]["contention"] == 2 * (40 + 1)
    tokens = [
        [event.token_ids for event in load_events(folder) if isinstance(event, ChunkEvent)]
        for folder in (paused, alone)
    ]
    assert tokens[0] == tokens[1]


def test_the_backends_read_what_the_traffic_counts(model: Path, tmp_path: Path) -> None:
    """Weights a step reads by the backends' own account: the logical bytes less the norms."""
    _, record, _ = run(model, tmp_path)
    assert record.engine is not None
    assert record.traffic is not None
    layers = HF["num_hidden_layers"]
    declared = sum(
        (op.read_bytes or 0) * op.num_calls for op in record.engine.ops if op.op == "linear" and op.phase == "decode"
    )
    norms = 2 * (layers * (2 * 64 + 2 * 32) + 64)
    assert declared == record.traffic.weight_read_bytes - norms


def test_a_backend_that_reads_more_than_the_model_has_is_shown(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.backends.linear.torch_linear import TorchLinear

    monkeypatch.setattr(TorchLinear, "read_bytes", lambda self, packed, m: 2 * packed.num_bytes)
    _, record, _ = run(model, tmp_path, {"linear": "torch"})
    assert record.analysis is not None
    assert any("backends declare" in warning for warning in record.analysis.warnings)
    _, record, _ = run(model, tmp_path, {"linear": "torch-mv"})
    assert record.analysis is not None
    assert not any("backends declare" in warning for warning in record.analysis.warnings)
    assert record.analysis.kernels["elementwise"] in ("cpu", "torch")


def test_a_backend_that_cannot_is_replaced_and_named(model: Path, tmp_path: Path) -> None:
    _, record, _ = run(model, tmp_path, {"prefill_linear": "torch-mv"})
    assert record.engine is not None
    fallbacks = [op for op in record.engine.ops if op.fallback_from]
    assert {op.fallback_from for op in fallbacks} == {"torch-mv"}
    assert all(op.backend != "torch-mv" and op.fallback_reason and op.phase == "prefill" for op in fallbacks)
    assert record.analysis is not None
    assert any("torch-mv can't" in warning for warning in record.analysis.warnings)


def test_fused_or_not_the_tokens_are_the_same(model: Path, tmp_path: Path) -> None:
    """Synthetic weights depend on seed and name alone, so only rounding could part them: in float32 nothing does."""
    tokens = []
    for fuse in (True, False):
        folder, _, _ = run(model, tmp_path, {"fuse": fuse, "dtype": "float32"})
        tokens.append([event.token_ids for event in load_events(folder) if isinstance(event, ChunkEvent)])
    assert tokens[0] == tokens[1]


def test_repeats_have_prompts_of_their_own(model: Path, tmp_path: Path) -> None:
    folder, _, _ = run(model, tmp_path, {"dtype": "float32"})
    by_repeat: dict[int, list[tuple[int, ...]]] = {0: [], 1: []}
    for event in load_events(folder):
        if isinstance(event, ChunkEvent):
            by_repeat[event.repeat].append(event.token_ids)
    assert by_repeat[0] != by_repeat[1]


def test_natural_stop_ends_with_the_end_token(model: Path, tmp_path: Path) -> None:
    folder, _, _ = run(model, tmp_path, {"dtype": "float32"})
    first = next(e.token_ids[0] for e in load_events(folder)[1:] if isinstance(e, ChunkEvent) and e.repeat == 0)
    model.write_text(json.dumps(HF | {"eos_token_id": [first]}))
    folder, record, _ = run(model, tmp_path, {"dtype": "float32"}, mode="natural-stop")
    assert record.requests[0].num_output_tokens == 1
    assert record.requests[0].tpot_s is None
    _, record, _ = run(model, tmp_path, {"dtype": "float32"})
    assert record.requests[0].num_output_tokens == 40, "fixed length goes on past the end token"


@pytest.mark.parametrize(
    ("engine", "workload", "error", "words"),
    [
        ({"linear": "no-such"}, {}, ConfigError, "no-such"),
        ({"attention": "no-such"}, {}, ConfigError, "no-such"),
        ({"elementwise": "no-such"}, {}, ConfigError, "no-such"),
        ({"device": "tpu"}, {}, ConfigError, "tpu"),
        ({"threads": 4096}, {}, ConfigError, "threads"),
        ({"weights": "checkpoint"}, {}, UnavailableError, "no weights"),
        ({}, {"prompts": ("hello",), "input_tokens": None}, ConfigError, "tokenizer"),
        ({}, {"output_tokens": 250}, ConfigError, "256 positions"),
    ],
)
def test_refusals(
    model: Path, tmp_path: Path, engine: dict[str, Any], workload: dict[str, Any], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        run(model, tmp_path, engine, **workload)


def test_no_gpu_is_said_so(model: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(UnavailableError, match="no GPU"):
        run(model, tmp_path, {"device": "cuda"})


def test_a_model_larger_than_memory_is_refused_before_it_is_made(model: Path, tmp_path: Path) -> None:
    model.write_text(json.dumps(HF | {"hidden_size": 1 << 17, "intermediate_size": 1 << 20, "num_hidden_layers": 99}))
    with pytest.raises(UnavailableError, match="of memory are free"):
        run(model, tmp_path)


def test_weights_that_do_not_fit_the_config_are_named(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from harness.engines.native.weights import TORCH_DTYPES
    from harness.models import resolve_model
    from harness.specs.layout import model_tensors

    tensors = model_tensors(resolve_model(str(model)).spec)
    good = {meta.name: torch.randn(meta.shape).to(TORCH_DTYPES[meta.dtype]) for meta in tensors}
    save_file(good, model.parent / "model.safetensors")
    _, record, _ = run(model.parent, tmp_path, {"weights": "checkpoint"})
    assert record.analysis is not None
    assert record.analysis.tensors_source == "headers"

    name = "model.layers.1.mlp.down_proj.weight"
    save_file({**good, name: torch.randn(3, 3)}, model.parent / "model.safetensors")
    with pytest.raises(CheckpointError, match=name):
        run(model.parent, tmp_path, {"weights": "checkpoint"})
    save_file({key: value for key, value in good.items() if key != name}, model.parent / "model.safetensors")
    with pytest.raises(CheckpointError, match=name):
        run(model.parent, tmp_path, {"weights": "checkpoint"})
    shutil.rmtree(model.parent)


def test_without_a_compiler_torch_does_all_and_the_record_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.backends.linear.onednn import multiplies

    monkeypatch.setenv("CXX", "/absent/c++")
    _, record, _ = run(model, tmp_path)
    assert record.probe is not None
    assert record.probe.method == "torch-reduction"
    assert record.engine is not None
    widened = set() if multiplies("BF16") else {"torch-widened"}
    assert {op.backend for op in record.engine.ops} == {"torch", "torch-sdpa"} | widened
    assert record.engine.num_threads is None
    assert record.analysis is not None
    assert any("no compiler" in warning for warning in record.analysis.warnings)
    _, record, _ = run(model, tmp_path, {"linear": "cpu-gemv"})
    assert record.analysis is not None
    assert any("cpu-gemv can't" in warning for warning in record.analysis.warnings)
    with pytest.raises(UnavailableError, match="elementwise is cpu"):
        run(model, tmp_path, {"elementwise": "cpu"})


@pytest.mark.parametrize("elementwise", ["cpu", "torch"])
@pytest.mark.parametrize("output_tokens", [1, 2, 16])
def test_short_answers_stay_within_their_cache(
    model: Path, tmp_path: Path, output_tokens: int, elementwise: str
) -> None:
    """The instrumented pass takes more steps than such an answer: it once wrote past the cache."""
    _, record, _ = run(model, tmp_path, {"elementwise": elementwise}, output_tokens=output_tokens, warmup_tokens=1)
    assert record.analysis is not None
    assert record.analysis.verdict == "invalid"
    assert record.analysis.tpot_s is None if output_tokens == 1 else record.analysis.tpot_s


def test_bytes_are_those_of_the_type_that_the_engine_holds(model: Path, tmp_path: Path) -> None:
    """A float32 checkpoint under a bfloat16 config: every weight is converted as it loads."""
    from safetensors.torch import save_file

    from harness.models import resolve_model
    from harness.specs.layout import model_tensors

    tensors = model_tensors(resolve_model(str(model)).spec)
    save_file({meta.name: torch.randn(meta.shape) for meta in tensors}, model.parent / "model.safetensors")
    _, record, _ = run(model.parent, tmp_path, {"weights": "checkpoint"})
    assert record.traffic is not None
    assert record.analysis is not None
    assert record.traffic.weight_read_bytes == sum(meta.num_bytes for meta in tensors)
    assert not any("backends declare" in warning for warning in record.analysis.warnings)


def test_attention_runs_on_the_threads_that_the_linears_run_on(model: Path, tmp_path: Path) -> None:
    _, record, _ = run(model, tmp_path, {"linear": "torch"})
    assert record.engine is not None
    assert {op.backend for op in record.engine.ops if op.op == "attention"} == {"torch-sdpa"}


def test_a_rope_scaling_that_is_not_known_is_refused_before_anything_is_measured(model: Path, tmp_path: Path) -> None:
    for scaling in ({"rope_type": "yarn"}, {"rope_type": "linear"}, {"rope_type": "linear", "factor": "x"}):
        model.write_text(json.dumps(HF | {"rope_scaling": scaling}))
        with pytest.raises(ConfigError, match="rope_scaling"):
            run(model, tmp_path)
    assert not list(tmp_path.glob("*-tiny-*"))


def test_a_damaged_tokenizer_is_named(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from harness.models import resolve_model
    from harness.specs.layout import model_tensors

    pytest.importorskip("tokenizers")
    tensors = model_tensors(resolve_model(str(model)).spec)
    save_file({meta.name: torch.zeros(meta.shape) for meta in tensors}, model.parent / "model.safetensors")
    (model.parent / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="tokenizer"):
        run(model.parent, tmp_path, {"weights": "checkpoint"})
