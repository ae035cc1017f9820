"""Traces that the native engine takes of itself, and what `harness profile` and `bench --profile` make of them."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from native_engines import opened, tiny_config

from harness.bench import run_bench
from harness.engines.base import DECODE_TRACE, PREFILL_TRACE
from harness.errors import ConfigError
from harness.profile import profile_trace
from harness.records import load_events
from harness.specs.event import TraceEvent
from harness.specs.request import Request
from harness.specs.run import RunConfig

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.usefixtures("any_share_of_python")]
REQUEST = Request(None, ((5, 90, 17, 3, 64),), 12, ignore_eos=True)
STEPS = 4


@pytest.mark.parametrize("route", ["torch", "cpu"])
@pytest.mark.parametrize("case", ["qwen3", "qwen3.5"])
def test_every_launch_of_a_step_is_in_its_trace(tmp_path: Path, case: str, route: str) -> None:
    with opened(tiny_config(tmp_path, case), route) as engine:
        engine.trace(REQUEST, STEPS, tmp_path)
        launches = engine._decoder.decode_step().launches
        said = engine.explain(REQUEST, 2)
    profile = profile_trace(tmp_path / DECODE_TRACE).profile
    assert (profile.status, profile.num_steps, profile.steps_source) == ("complete", STEPS, "decode_step")
    calls = {part.kernel_class: part.num_calls for part in profile.classes}
    kinds = [bound.kind for bound in launches]
    own = {"linear", "attention", "linear-attention", "sampling"} & {*kinds}
    assert {kind: calls[kind] for kind in own} == {kind: kinds.count(kind) for kind in own}
    assert own <= {*calls} and {part.name for part in said.classes} >= own
    assert not profile.other_kernels


def test_a_prompts_chunk_has_a_trace_of_its_own(tmp_path: Path) -> None:
    with opened(tiny_config(tmp_path, "qwen3"), "cpu", prefill_chunk=4) as engine:
        engine.trace(REQUEST, STEPS, tmp_path)
        launches = engine._decoder._prompt_steps[4, 0].launches
    profile = profile_trace(tmp_path / PREFILL_TRACE).profile
    names = {kernel.name for kernel in profile.kernels}
    assert (profile.status, profile.per, profile.positions) == ("complete", "prompt", (0, 4)) and names
    assert len([bound for bound in launches if bound.kind == "linear"]) > 0


def test_steps_are_traced_from_the_wanted_one_on(tmp_path: Path) -> None:
    """Behind five of the prompt: in the middle of twelve, or behind two; a step more than asked for is marked."""
    with opened(tiny_config(tmp_path, "qwen3"), "cpu") as engine:
        for first_step, context in ((None, 5 + 6), (2, 5 + 2), (0, 5)):
            engine.trace(REQUEST, STEPS, tmp_path, first_step)
            assert int(engine._decoder.context[0]) == context + STEPS + 1


def test_a_product_of_the_trace_has_its_own_wall(tmp_path: Path) -> None:
    """As many bytes as the run's record says that its calls read."""
    folder, record, _ = run_bench(config(tiny_config(tmp_path, "qwen3")), tmp_path, lambda line: None)
    assert record.engine is not None
    read = {}
    for op in record.engine.ops:
        if op.op == "linear" and op.phase == "decode":
            read[f"harness::linear::{op.role}"] = (op.read_bytes or 0) * op.num_calls
    kernels = profile_trace(folder / DECODE_TRACE, run=folder).profile.kernels
    products = [kernel for kernel in kernels if kernel.kernel_class == "linear"]
    assert products and {kernel.name: kernel.moved_bytes for kernel in products}.items() <= read.items()
    assert all(kernel.roof_frac is not None for kernel in products)
    prompts = profile_trace(folder / PREFILL_TRACE, run=folder).profile.kernels
    products = [kernel for kernel in prompts if kernel.kernel_class == "linear"]
    assert products and all(kernel.flop and kernel.roof_frac is not None for kernel in products)


def test_a_trace_needs_room_for_its_steps(tmp_path: Path) -> None:
    with opened(tiny_config(tmp_path, "qwen3"), "cpu") as engine, pytest.raises(ConfigError, match="positions"):
        engine.trace(REQUEST, 100, tmp_path)
    assert not list(tmp_path.glob("*.gz"))


def config(model: Any, **changes: Any) -> RunConfig:
    values = {
        "name": "t", "model": str(model), "engine": {"kind": "native", "device": "cpu", "weights": "synthetic"},
        "workload": {"input_tokens": 9, "output_tokens": 40, "repeats": 2, "warmup_tokens": 2},
        "probe": {"buffer_bytes": 1 << 20, "survey_s": 0.1, "reading_s": 0.001}, "profile": {"decode_steps": STEPS},
    }  # fmt: skip
    return RunConfig.model_validate(values | changes)


def test_a_run_with_its_trace(tmp_path: Path) -> None:
    folder, record, _ = run_bench(config(tiny_config(tmp_path, "qwen3")), tmp_path, lambda line: None)
    assert {DECODE_TRACE, PREFILL_TRACE} <= {path.name for path in folder.iterdir()}
    assert record.analysis is not None and record.analysis.timeline_gaps_s is None
    completed = profile_trace(folder / DECODE_TRACE, run=folder).record
    assert completed is not None and completed.analysis is not None
    assert completed.analysis.timeline_gaps_s is not None
    (found,) = [event for event in load_events(folder) if isinstance(event, TraceEvent)]
    assert found.evidence.num_steps == STEPS


def test_an_engine_that_takes_none_says_so(tmp_path: Path) -> None:
    scripted = config("qwen3-0.6b", engine={"kind": "scripted"})
    with pytest.raises(ConfigError, match="takes no trace"):
        run_bench(scripted, tmp_path, lambda line: None)


def test_steps_from_a_certain_one_on_have_its_context(tmp_path: Path) -> None:
    """Behind a prompt of 9 the step after 20 others attends to 30 places; of its four the mean is 31."""
    traced = config(tiny_config(tmp_path, "qwen3"), profile={"decode_steps": STEPS, "first_step": 20})
    folder, _, _ = run_bench(traced, tmp_path, lambda line: None)
    assert profile_trace(folder / DECODE_TRACE, run=folder).profile.mean_context == 31
    elsewhere = folder.parent / DECODE_TRACE
    elsewhere.write_bytes((folder / DECODE_TRACE).read_bytes())
    everywhere = profile_trace(elsewhere, run=folder).profile
    assert everywhere.mean_context == 9 + 20, "of all steps of the run, 10 to 48"


def test_steps_beyond_the_answer_are_refused(tmp_path: Path) -> None:
    late = config("qwen3-0.6b", profile={"decode_steps": STEPS, "first_step": 35})
    with pytest.raises(ConfigError, match="decode_steps is 4 behind 35 others: an answer of 40 tokens has fewer"):
        run_bench(late, tmp_path, lambda line: None)


def test_a_sweep_takes_none() -> None:
    with pytest.raises(ValueError, match="a sweep takes no trace"):
        config("qwen3-0.6b", sweep={"over": "batch", "values": (1, 2)})
