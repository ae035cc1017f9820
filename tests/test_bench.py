"""The order of a run, by a scripted rig that is watched: what is opened, asked and closed, and when."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.bench import check_gate, engine_traffic, run_bench
from harness.engines.scripted import ScriptedDecoder, ScriptedProbe, ScriptedRig
from harness.errors import ConfigError, GateFailed
from harness.models import resolve_model
from harness.records import load_events
from harness.specs.event import PauseEvent
from harness.specs.record import RunRecord
from harness.specs.request import Request
from harness.specs.run import Gate, RunConfig

WATCHED = (
    (ScriptedRig, "open_probe"), (ScriptedRig, "open_engine"), (ScriptedRig, "close"), (ScriptedDecoder, "generate"),
    (ScriptedDecoder, "close"), (ScriptedProbe, "survey"), (ScriptedProbe, "close"),
)  # fmt: skip


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """(what was called, its first argument) in the order of the calls."""
    calls: list[tuple[str, Any]] = []

    def watched(call: Callable[..., Any], called: str) -> Callable[..., Any]:
        def calling(*arguments: Any) -> Any:
            calls.append((called, arguments[1] if len(arguments) > 1 else None))
            return call(*arguments)

        return calling

    for cls, name in WATCHED:
        called = f"{cls.__name__.removeprefix('Scripted').lower()} {name}"
        monkeypatch.setattr(cls, name, watched(getattr(cls, name), called))
    return calls


def made(tmp_path: Path, **workload: Any) -> tuple[Path, RunRecord, str]:
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted"},
        "workload": {"input_tokens": 8, "output_tokens": 40, "repeats": 2, **workload},
    }  # fmt: skip
    return run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)


def requests(heard: list[tuple[str, Any]]) -> list[Request]:
    return [call[1] for call in heard if call[0] == "decoder generate"]


def test_the_probe_comes_first_and_all_is_closed_in_the_end(tmp_path: Path, heard: list[tuple[str, Any]]) -> None:
    made(tmp_path)
    assert [call[0] for call in heard] == [
        "rig open_probe", "probe survey", "rig open_engine", *["decoder generate"] * 3, "decoder close", "probe close",
        "rig close",
    ]  # fmt: skip


def test_all_is_closed_when_a_run_fails(tmp_path: Path, heard: list[tuple[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="positions"):
        made(tmp_path, output_tokens=100_000)
    assert [call[0] for call in heard[-3:]] == ["decoder close", "probe close", "rig close"]


def test_the_warm_up_has_the_length_of_a_repeat_and_the_prompt_of_none(tmp_path: Path, heard: Any) -> None:
    made(tmp_path, warmup_tokens=3)
    warmup, *repeats = requests(heard)
    assert warmup.prompts_ids is not None
    assert (len(warmup.prompts_ids[0]), warmup.max_output_tokens) == (8, 3)
    assert len({request.prompts_ids for request in (warmup, *repeats)}) == 3


def test_prompts_take_turns_and_the_text_is_that_of_the_first(tmp_path: Path, heard: Any) -> None:
    prompts = ("one two", "three four")
    _, _, text = made(tmp_path, input_tokens=None, prompts=prompts, repeats=3)
    assert [request.prompt for request in requests(heard)] == [None, "one two", "three four", "one two"]
    assert text.split() == [str(index) for index in range(40)]


def test_a_warm_up_for_each_length_of_prompt(tmp_path: Path, heard: Any) -> None:
    made(tmp_path, input_tokens=None, prompts=("one", "two three"))
    warmups = [ids[0] for ids in (request.prompts_ids for request in requests(heard)) if ids is not None]
    assert [len(ids) for ids in warmups] == [1, 2]


def test_the_models_last_position_may_be_used(tmp_path: Path) -> None:
    _, record, _ = made(tmp_path, input_tokens=40_960 - 40, repeats=1)
    assert record.model.max_position_embeddings == 40_960
    with pytest.raises(ConfigError, match="40960 positions"):
        made(tmp_path, input_tokens=40_960 - 39, repeats=1)


def test_an_engine_that_cannot_wait_is_never_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, _ = made(tmp_path, output_tokens=200)
    assert any(isinstance(event, PauseEvent) for event in load_events(folder))
    monkeypatch.setattr(ScriptedDecoder, "can_pause", False)
    folder, _, _ = made(tmp_path, output_tokens=200)
    assert not any(isinstance(event, PauseEvent) for event in load_events(folder))


@pytest.fixture
def real_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripted engine on what says it is a CPU; the folder of its machine-wide lock."""
    initialize = ScriptedRig.__init__

    def named_cpu(self: Any, *arguments: Any) -> None:
        initialize(self, *arguments)
        self.device = self.device.model_copy(update={"kind": "cpu"})

    monkeypatch.setattr(ScriptedRig, "__init__", named_cpu)
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(locks))
    return locks


def test_the_machine_is_held_while_a_real_device_is_measured(
    tmp_path: Path, real_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey, held = ScriptedProbe.survey, []

    def watched(self: Any, working_set_bytes: int | None) -> Any:
        (lock,) = real_device.iterdir()
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(lock)
        return survey(self, working_set_bytes)

    monkeypatch.setattr(ScriptedProbe, "survey", watched)
    made(tmp_path)
    assert held


@pytest.mark.parametrize(
    ("bound", "figure", "met", "missed"),
    [
        ("min_util_frac", "util_frac", 0.9, 1.1),
        ("min_throughput_tokens_per_s", "throughput_tokens_per_s", 0.9, 1.1),
        ("max_ttft_s", "ttft_s", 1.1, 0.9),
        ("max_tpot_s", "tpot_s", 1.1, 0.9),
    ],
)
def test_a_gate_bounds_the_figure_of_its_name(
    tmp_path: Path, bound: str, figure: str, met: float, missed: float
) -> None:
    _, record, _ = made(tmp_path)
    assert record.analysis is not None
    value = getattr(record.analysis, figure)
    check_gate(Gate.model_validate({bound: met * value}), record.analysis)
    check_gate(Gate.model_validate({bound: value}), record.analysis)
    with pytest.raises(GateFailed, match=f"{figure} is {value:.4g}, wanted at (least|most) {missed * value:.4g}"):
        check_gate(Gate.model_validate({bound: missed * value}), record.analysis)
    with pytest.raises(GateFailed, match=f"{figure} is null"):
        check_gate(Gate.model_validate({bound: met * value}), record.analysis.model_copy(update={figure: None}))


def test_a_native_engine_reads_weights_and_cache_of_the_type_it_is_told() -> None:
    config = {"name": "t", "model": "qwen3-0.6b", "workload": {"input_tokens": 8}}
    model = resolve_model("qwen3-0.6b")
    for dtype, value_bytes in ((None, 2), ("bfloat16", 2), ("float32", 4)):
        native = RunConfig.model_validate({**config, "engine": {"kind": "native", "dtype": dtype}})
        traffic = engine_traffic(native, model)
        assert traffic.weight_read_bytes == 1_192_099_840 // 2 * value_bytes
        assert traffic.kv_bytes_per_context_token == 114_688 // 2 * value_bytes


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ({"kind": "openai", "url": "http://127.0.0.1:9/v1"}, "engine of kind openai takes no trace"),
        ({"kind": "vllm-server"}, "engine of kind vllm-server takes no trace"),
        ({"kind": "scripted"}, "engine of kind scripted takes no trace"),
        ({"kind": "vllm", "tensor_parallel": 2}, "workers would be processes"),
        ({"kind": "vllm", "executor": "mp"}, "workers would be processes"),
    ],
)
def test_a_trace_that_the_engine_cant_take_is_refused_before_anything_starts(
    tmp_path: Path, engine: dict[str, Any], complaint: str
) -> None:
    config = RunConfig.model_validate(
        {"name": "t", "model": "qwen3-0.6b", "engine": engine, "workload": {"input_tokens": 8}, "profile": {}}
    )
    with pytest.raises(ConfigError, match=complaint) as fault:
        run_bench(config, tmp_path, lambda line: None)
    assert "leave" in fault.value.mend
    assert not list(tmp_path.iterdir())


def test_a_trace_of_more_steps_than_the_answer_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = RunConfig.model_validate(
        {
            "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "native"},
            "workload": {"input_tokens": 8, "output_tokens": 8}, "profile": {"decode_steps": 8},
        }
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"profile.decode_steps is 8"):
        run_bench(config, tmp_path, lambda line: None)
    assert not list(tmp_path.iterdir())
