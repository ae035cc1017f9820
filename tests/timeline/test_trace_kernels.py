"""The largest kernels with walls of their own, those of no class, and a part of a prompt, worked by hand."""

from pathlib import Path

import pytest
from trace_files import Event, call, kernel, mark, op, save, torch_trace

from harness.specs.analysis import PromptChunk
from harness.specs.engine import OpChoice
from harness.specs.profile import TraceProfile
from harness.specs.step import DecodeTraffic
from harness.timeline.analysis import explain
from harness.timeline.classes import classifier
from harness.timeline.floors import Moved, StepWork, moved_by_launch, moved_by_prompt, moved_by_prompts_launch
from harness.traces.read import read_trace
from harness.traces.rules import load_rules

CLASS_OF = classifier(load_rules())
US = 1e-6
# At 1 B a ns and 10 FLOP a ns: products take 100 us, of which `up` is 90; attention 20.
WORK = StepWork(
    {"linear": Moved(100_000, flop=200_000), "attention": Moved(20_000, flop=10_000)}, 1e9, 1e10, 17,
    launches={"harness::linear::up": Moved(90_000, flop=180_000), "harness::linear::q": Moved(10_000, flop=20_000)},
)  # fmt: skip


def explained(
    tmp_path: Path, events: list[Event], work: StepWork | None = None, num_steps: int | None = 1
) -> TraceProfile:
    return explain(read_trace(save(tmp_path / "t", torch_trace(events))), "t", CLASS_OF, num_steps, work)


def launch(name: str, at_us: float, duration_us: float) -> Event:
    return mark(f"harness::{name}", at_us, duration_us, on_device=False)


def test_a_marked_product_has_a_wall_of_its_own(tmp_path: Path) -> None:
    """Two calls of `up` take 240 us at a floor of 90; `q` 11 at 10; attention, alone in its class, 40 at 20."""
    events = [
        launch("linear::up", 0.0, 120.0), launch("linear::up", 120.0, 120.0), launch("linear::q", 240.0, 11.0),
        launch("attention::decode", 251.0, 40.0),
    ]  # fmt: skip
    up, attention, q = explained(tmp_path, events, WORK).kernels
    assert (up.name, up.moved_bytes, up.flop, up.bound) == ("harness::linear::up", 90_000, 180_000, "memory")
    assert (up.floor_s, up.roof_frac) == (pytest.approx(90 * US), pytest.approx(90 / 240))
    assert up.class_roof_frac == pytest.approx(100 / 251)
    assert up.why == "75.0 us a call above its memory floor of 45.0"
    assert (attention.moved_bytes, attention.roof_frac) == (20_000, pytest.approx(0.5))
    assert (q.roof_frac, q.why) == (pytest.approx(10 / 11), "at its memory wall")


def test_kernels_of_one_class_share_its_bytes_in_a_way_that_nothing_tells(tmp_path: Path) -> None:
    events = [
        kernel("gemv_rows<bf16>", 0.0, 150.0),
        kernel("gemv_combine", 150.0, 50.0),
        kernel("rms_norm", 200.0, 30.0),
    ]
    gemv, combine, norm = explained(tmp_path, events, WORK).kernels
    for one in (gemv, combine):
        assert (one.moved_bytes, one.floor_s, one.roof_frac, one.bound) == (None, None, None, "memory")
        assert one.class_roof_frac == pytest.approx(0.5, rel=1e-3)
        assert one.why == "one of several of its class, which together are at 50.0 % of their roof"
    assert (norm.bound, norm.why) == (None, "what it moves is not known")
    events = [kernel("gemv_rows<bf16>", 0.0, 200.0), kernel("add_splits", 200.0, 1.0)]
    (alone, *_) = explained(tmp_path, events, WORK).kernels
    assert (alone.moved_bytes, alone.roof_frac) == (100_000, pytest.approx(0.5, rel=1e-3))


def test_a_kernel_faster_than_its_roof_is_doubted_and_arithmetic_may_be_its_wall(tmp_path: Path) -> None:
    (fast,) = explained(tmp_path, [kernel("gemv", 0.0, 50.0)], WORK).kernels
    assert fast.why == "200.0 % of its memory roof: a cache serves it, or its bytes are counted too high"
    heavy = StepWork({"linear": Moved(1000, flop=40_000)}, 1e9, 1e10, 17)
    (slow,) = explained(tmp_path, [kernel("gemv", 0.0, 8.0)], heavy).kernels
    assert (slow.bound, slow.why) == ("compute", "4.0 us a call above its compute floor of 4.0")


@pytest.mark.parametrize(("work", "num_steps"), [(None, 1), (WORK, None)])
def test_without_a_run_or_steps_no_kernel_has_a_wall(
    tmp_path: Path, work: StepWork | None, num_steps: int | None
) -> None:
    (row,) = explained(tmp_path, [launch("linear::up", 0.0, 120.0)], work, num_steps).kernels
    assert (row.moved_bytes, row.floor_s, row.bound, row.why) == (None, None, None, "what it moves is not known")


def test_every_kernel_of_no_class_is_listed(tmp_path: Path) -> None:
    events = [kernel(f"mystery_{n}", 10.0 * n, 1.0 + n) for n in range(9)]
    found = explained(tmp_path, events)
    assert [row.name for row in found.other_kernels] == [f"mystery_{n}" for n in reversed(range(9))]


def choice(role: str, shape: str, read_bytes: int | None, **changes: object) -> OpChoice:
    values = {"op": "linear", "phase": "decode", "backend": "torch", "contest_legal": True, "layers": "0-1"}
    return OpChoice.model_validate({**values, "role": role, "shape": shape, "read_bytes": read_bytes, **changes})


def test_bytes_of_launches_are_those_of_the_decode_steps_products() -> None:
    """Layers by two backends count together; a prompt's, another batch's and those that nobody counts do not."""
    ops = [
        choice("up", "1x30x10", 600, num_calls=2), choice("up", "1x30x10", 700, num_calls=1, backend="cpu-gemv"),
        choice("up", "4x30x10", 600, batch=4), choice("up", "mx30x10", 600, phase="prefill"),
        choice("experts", "-", None), choice("decode", "4/2 heads x 8", 9, op="attention"),
    ]  # fmt: skip
    assert moved_by_launch(ops, 1) == {"harness::linear::up": Moved(1900, flop=3 * 2 * 300)}


def test_bytes_of_a_prompts_launches_are_weights_and_the_head_is_for_one_position() -> None:
    ops = [
        choice("up", "1x30x10", 600, num_calls=2), choice("up", "mx30x10", None, phase="prefill", num_calls=2),
        choice("experts", "-", None, phase="prefill"), choice("head", "1x50x10", 999, layers="model"),
        choice("head", "4x50x10", 999, layers="model", batch=4),
    ]  # fmt: skip
    assert moved_by_prompts_launch(ops, 64, "BF16") == {
        "harness::linear::up": Moved(2 * 600, flop=2 * 2 * 64 * 300), "harness::linear::head": Moved(1000, flop=1000),
    }  # fmt: skip


TRAFFIC = DecodeTraffic(
    tensors_source="config", weight_read_bytes=1000, embedding_row_bytes=8, kv_bytes_per_context_token=10,
    state_read_bytes=30, state_write_bytes=40, resident_weight_bytes=1008, linear_flop=500,
    attention_flop_per_context_token=4, state_flop=60,
)  # fmt: skip
CHUNK = PromptChunk(begin=4, end=8, linear_flop=2000, attention_flop=104, state_flop=240, weight_bytes=1000)


def test_a_part_of_a_prompt_moves_weights_once_and_the_cache_up_to_its_end() -> None:
    assert moved_by_prompt(CHUNK, TRAFFIC) == {
        "linear": Moved(1000, flop=2000), "attention": Moved(80, flop=104),
        "linear-attention": Moved(30, 40, 240), "kv-write": Moved(0, 40),
    }  # fmt: skip


PROMPT = StepWork({"linear": Moved(1000, flop=40_000), "attention": Moved(80, flop=1000)}, 1e9, 1e10, 6)


def test_a_trace_of_a_prompt_is_held_against_arithmetic(tmp_path: Path) -> None:
    """Products take 5 us at 4 of arithmetic, attention 3 at 0.1: it loses most, though products take longer."""
    events = [
        mark("prefill 4-8", 0.0, 9.0), call("cudaLaunchKernel", 0.0, 0.1), kernel("gemm", 0.5, 5.0),
        kernel("flash_fwd", 5.5, 3.0), kernel("before", 0.0, 0.1) | {"ts": -50.0},
    ]  # fmt: skip
    found = explained(tmp_path, events, PROMPT, None)
    assert (found.per, found.positions, found.num_steps) == ("prompt", (4, 8), 1)
    assert found.wall_s == pytest.approx(8.5 * US, rel=1e-3)
    assert found.cause == "attention-path"
    assert found.why == "attention-path loses 0.003 ms of the prompt, 65.9 % of the loss"
    assert {(row.kernel_class, row.bound) for row in found.classes} == {("linear", "compute"), ("attention", "compute")}


def test_a_prompts_cause_is_not_guessed_without_a_peak(tmp_path: Path) -> None:
    events = [mark("prefill 0-8", 0.0, 9.0, on_device=False), op("aten::mm", 0.0, 9.0)]
    no_peak = StepWork(PROMPT.moved, 1e9, None, 6)
    for work in (None, no_peak):
        found = explained(tmp_path, events, work, None)
        assert (found.per, found.cause) == ("prompt", "unknown")
