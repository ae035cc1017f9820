"""What a trace says, worked by hand on small traces of every format."""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import STATISTICS, Event, call, hipprof_trace, kernel, mark, op, save, span, torch_trace

from harness.specs.kernel_classes import KernelClass
from harness.specs.profile import TraceProfile
from harness.specs.step import DecodeTraffic, SlidingCache
from harness.specs.trace import Call, Trace, Work
from harness.timeline.analysis import explain
from harness.timeline.classes import classifier
from harness.timeline.floors import LAUNCH_CLASS, Moved, StepWork, moved_by_class
from harness.traces.read import read_trace
from harness.traces.rules import load_rules
from harness.verdict import NEXT_STEP

CLASS_OF = classifier(load_rules())
US = 1e-6


def explained(tmp_path: Path, content: Any, num_steps: int | None = None, work: StepWork | None = None) -> TraceProfile:
    return explain(read_trace(save(tmp_path / "t", content)), "t", CLASS_OF, num_steps, work)


def us(seconds: float | None) -> float:
    assert seconds is not None
    return seconds / US


# 0    10        30    35         55  60      100 us
# |gemv 20  ....|gemv| synchronize..| launch  |
TWO_STREAMS = [
    call("cudaLaunchKernel", 0.0, 4.0, 1),
    kernel("gemv", 10.0, 20.0, 1),
    kernel("flash_fwd_kernel", 25.0, 10.0, 2, stream=9),
    call("cudaLaunchKernel", 5.0, 2.0, 2),
    call("cudaStreamSynchronize", 20.0, 30.0, 3),
    call("cudaMemcpyAsync", 45.0, 10.0, 4),
    call("cudaLaunchKernel", 60.0, 30.0, 5),
    kernel("gemv", 80.0, 20.0, 5),
]


def test_busy_gaps_and_what_spans_them(tmp_path: Path) -> None:
    """Kernels cover 10-35 and 80-100; of the gap 35-80 the host waits 35-50, copies 50-55, launches 60-80."""
    p = explained(tmp_path, torch_trace(TWO_STREAMS))
    assert (us(p.wall_s), us(p.busy_s), us(p.gaps_s)) == pytest.approx((90, 45, 45), abs=0.01)
    assert p.num_gaps == 1
    assert {row.spanned_by: us(row.time_s) for row in p.gaps} == pytest.approx(
        {"launch": 20, "synchronize": 15, "memcpy": 5, "nothing": 5}, abs=0.01
    )
    (gap,) = p.longest_gaps
    assert (gap.spanned_by, gap.call, gap.after, gap.before) == (
        "launch", "cudaLaunchKernel", "flash_fwd_kernel", "gemv",
    )  # fmt: skip
    assert {row.kernel_class: (row.num_calls, us(row.time_s)) for row in p.classes} == {
        "linear": (2, pytest.approx(40, abs=0.01)), "attention": (1, pytest.approx(10, abs=0.01)),
    }  # fmt: skip
    assert (p.per, p.num_steps) == ("trace", None)
    assert any("--steps" in note for note in p.notes)
    assert any("overlap for 0.005 ms" in note for note in p.notes)


def test_without_a_run_gaps_are_the_cause_where_they_are_half_of_the_time(tmp_path: Path) -> None:
    half = explained(tmp_path, torch_trace(TWO_STREAMS))
    assert (half.cause, half.why) == ("outside-kernels", "outside-kernels takes 50.0 % of the time")
    assert "graph" in half.next_step
    longer = [*TWO_STREAMS, kernel("gemv", 100.0, 2.0)]
    less = explained(tmp_path, torch_trace(longer))
    assert less.cause == "unknown"
    assert "--run" in less.next_step
    waiting = explained(tmp_path, torch_trace([kernel("ncclDevKernel_AllReduce", 0.0, 6.0), kernel("gemv", 6.0, 5.0)]))
    assert waiting.cause == "communication"


def test_steps_are_counted_from_mark_to_mark(tmp_path: Path) -> None:
    """Three marks: two whole steps of 50 us, the pause between them included; the prompt before and the last are left
    out."""
    events: list[Event] = [kernel("prompt_gemm", 0.0, 500.0)]
    for begin in (1000.0, 1050.0, 1100.0):
        events += [mark("decode_step", begin, 40.0), mark("decode_step", begin - 30.0, 20.0, on_device=False)]
        events += [kernel("gemv", begin, 30.0), kernel("attend_split<bf16>", begin + 30.0, 10.0)]
    p = explained(tmp_path, torch_trace(events))
    assert (p.num_steps, p.steps_source, p.per) == (2, "decode_step", "step")
    assert (us(p.wall_s), us(p.busy_s), us(p.gaps_s)) == pytest.approx((50, 40, 10), abs=0.01)
    assert {row.kernel_class: row.num_calls for row in p.classes} == {"linear": 1, "attention": 1}
    assert p.num_gaps == 1
    whole = explained(tmp_path, torch_trace(events), num_steps=3)
    assert (whole.num_steps, whole.steps_source) == (3, "--steps")
    assert us(whole.wall_s) == pytest.approx(1140 / 3, abs=0.01)


def test_a_step_on_two_streams_is_one(tmp_path: Path) -> None:
    """Each stream has a stretch of its own; the host's mark that both belong to tells them apart from the next step."""
    events: list[Event] = []
    for number, begin in enumerate((0.0, 50.0, 100.0)):
        for stream, offset in ((9, 5.0), (7, 0.0)):
            events.append(kernel("gemv", begin + offset, 10.0, stream=stream))
            events.append(call("cudaLaunchKernel", begin, 1.0))
            events.append(mark("decode_step", begin + offset, 10.0) | {"args": {"External id": number}})
    p = explained(tmp_path, torch_trace(events))
    assert (p.num_steps, us(p.wall_s), us(p.busy_s)) == (2, pytest.approx(50, abs=0.01), pytest.approx(15, abs=0.01))


def test_vllms_marks_tell_prompts_from_steps(tmp_path: Path) -> None:
    def step(name: str, begin: float) -> list[Event]:
        return [mark(name, begin, 10.0), kernel("gemv", begin, 10.0)]

    decode, prompt = "execute_context_0(0)_generation_1(1)", "execute_context_1(64)_generation_0(0)"
    events = step(decode, 0.0) + step(prompt, 100.0)
    events += step(decode, 200.0) + step(decode, 220.0) + step(decode, 240.0)
    p = explained(tmp_path, torch_trace(events))
    assert (p.num_steps, p.steps_source) == (2, "vLLM's marks")
    assert (us(p.wall_s), us(p.gaps_s)) == pytest.approx((20, 10), abs=0.01)
    on_host = [mark(e["name"], e["ts"] - events[0]["ts"], 1.0, False) for e in events if "execute" in e["name"]]
    kernels = [event for event in events if event["cat"] == "kernel"]
    launches = [call("cudaLaunchKernel", event["ts"] - events[0]["ts"], 1.0) for event in kernels]
    p = explained(tmp_path, torch_trace([*on_host, *launches, *kernels]))
    assert p.num_steps is None, "a prompt's kernels can't be told from the steps'"
    after_prompt = [event for several in (on_host, launches, kernels) for event in several[2:]]
    assert explained(tmp_path, torch_trace(after_prompt)).num_steps == 3


def test_a_single_mark_is_one_step_to_the_end(tmp_path: Path) -> None:
    events = [kernel("prompt_gemm", 0.0, 50.0), mark("decode_step", 100.0, 10.0), kernel("gemv", 100.0, 10.0)]
    p = explained(tmp_path, torch_trace(events))
    assert (p.num_steps, us(p.wall_s)) == (1, pytest.approx(10, abs=0.01))


def test_profiler_steps_on_the_host_count_where_they_launch(tmp_path: Path) -> None:
    events = [mark(f"ProfilerStep#{n}", 100.0 * n, 90.0, on_device=False) for n in range(3)]
    events += [call("cudaLaunchKernel", 100.0 * n + 5.0, 2.0, n) for n in range(2)]
    events += [kernel("gemv", 100.0 * n + 20.0, 60.0, n) for n in range(2)]
    p = explained(tmp_path, torch_trace(events))
    assert (p.num_steps, p.steps_source) == (2, "ProfilerStep"), "the last holds nothing"


def test_a_hipprof_trace(tmp_path: Path) -> None:
    p = explained(tmp_path, hipprof_trace(), num_steps=2)
    assert (p.device, us(p.wall_s), us(p.gaps_s)) == ("GPU 3", pytest.approx(55), pytest.approx(30))
    assert {row.spanned_by: us(row.time_s) for row in p.gaps} == pytest.approx(
        {"launch": 25, "memcpy": 2.5, "nothing": 2.5}
    )
    assert {row.kernel_class: row.moved_bytes for row in p.classes} == {"linear": None, "memcpy": 2048}


def test_sums_have_shares_and_no_gaps(tmp_path: Path) -> None:
    p = explained(tmp_path, STATISTICS)
    assert {row.kernel_class: row.time_frac for row in p.classes} == pytest.approx({"linear": 0.75, "other": 0.25})
    assert [row.name for row in p.other_kernels] == ["my_own(int)"]
    assert (p.wall_s, p.gaps_s, p.num_gaps, p.gaps, p.status) == (None, None, None, (), "complete")
    assert (p.cause, p.per) == ("unknown", "trace")
    assert {row.what: us(row.wall_s) for row in p.what_ifs} == pytest.approx({"linear gone": 10, "other gone": 30})


# A step of 1,000 B of weights and 200 of cache at 1 B a ns; 4,000 FLOP of products at 10 FLOP a ns: 400 ns.
WORK = StepWork(
    {"linear": Moved(1000, flop=4000), "attention": Moved(200, flop=100), "kv-write": Moved(0, 2)}, 1e9, 1e10, 17
)


def test_floors_walls_and_what_ifs(tmp_path: Path) -> None:
    """Step of 4 us: products 1.6 of which 1 is their floor, attention 0.4 of 0.2, norm 0.5, a cache write, gaps 1.4."""
    events = [
        kernel("gemv", 0.0, 1.0), kernel("gemv", 1.0, 0.6), kernel("attend_split", 1.6, 0.4),
        kernel("rms_norm_kernel", 2.0, 0.5), kernel("reshape_and_cache", 2.5, 0.1), kernel("mystery", 3.999, 0.001),
    ]  # fmt: skip
    p = explained(tmp_path, torch_trace(events), 1, WORK)
    assert (us(p.wall_s), us(p.gaps_s), p.mean_context) == (
        pytest.approx(4, abs=2e-3),
        pytest.approx(1.4, abs=2e-3),
        17,
    )
    rows = {row.kernel_class: row for row in p.classes}
    linear, attention, norm = rows["linear"], rows["attention"], rows["norm"]
    assert (linear.moved_bytes, linear.flop, linear.bound) == (1000, 4000, "memory")
    assert (linear.floor_s, linear.roof_frac) == (pytest.approx(1 * US), pytest.approx(1 / 1.6, rel=2e-3))
    assert attention.roof_frac == pytest.approx(0.5, rel=5e-3)
    assert (norm.floor_s, norm.moved_bytes, norm.bound) == (None, None, None)
    assert [(k.name, k.bound) for k in p.kernels] == [
        ("gemv", "memory"),
        ("rms_norm_kernel", None),
        ("attend_split", "memory"),
    ]
    walls = {row.what: us(row.wall_s) for row in p.what_ifs}
    expected = {
        "no gaps": 2.6, "linear at its roof": 3.4, "attention at its roof": 3.8, "norm gone": 3.5,
        "kv-write at its roof": 3.902, "other gone": 4, "all of these but what is gone": 4 - 1.4 - 0.6 - 0.2 - 0.098,
    }  # fmt: skip
    assert walls == pytest.approx(expected, abs=5e-3)
    (first, *_) = p.what_ifs
    assert (first.what, first.speedup) == ("all of these but what is gone", pytest.approx(4 / 1.702, rel=5e-3))
    assert (p.cause, "1.4" in (p.why or "") or "0.001 ms" in (p.why or "")) == ("outside-kernels", True)


@pytest.mark.parametrize("content", [torch_trace(TWO_STREAMS), STATISTICS], ids=["timeline", "sums"])
def test_a_steps_floor_is_no_floor_of_a_trace_of_unknown_length(tmp_path: Path, content: Any) -> None:
    p = explained(tmp_path, content, None, WORK)
    assert (p.num_steps, p.mean_context) == (None, None)
    assert {(row.floor_s, row.moved_bytes, row.bound) for row in p.classes} == {(None, None, None)}


def test_every_class_that_may_be_a_cause_has_a_next_step() -> None:
    names = {LAUNCH_CLASS.get(name, name) for name in get_args(KernelClass)} - {"communication"}
    assert {f"{name}-path" for name in names} | {"communication", "outside-kernels"} <= NEXT_STEP.keys()


def test_arithmetic_may_be_the_wall(tmp_path: Path) -> None:
    heavy = StepWork({"linear": Moved(1000, flop=40_000)}, 1e9, 1e10, 17)
    p = explained(tmp_path, torch_trace([kernel("gemv", 0.0, 8.0)]), 1, heavy)
    assert (p.classes[0].bound, p.classes[0].floor_s) == ("compute", pytest.approx(4 * US))
    without_peak = StepWork(heavy.moved, 1e9, None, 17)
    p = explained(tmp_path, torch_trace([kernel("gemv", 0.0, 8.0)]), 1, without_peak)
    assert (p.classes[0].bound, p.classes[0].floor_s) == (None, pytest.approx(1 * US))


def test_a_slow_class_is_the_cause(tmp_path: Path) -> None:
    """Norm and cache write are elementwise in a verdict's words: together they lose most."""
    events = [kernel("gemv", 0.0, 1.1), kernel("rms_norm_kernel", 1.1, 0.6), kernel("reshape_and_cache", 1.7, 0.5)]
    p = explained(tmp_path, torch_trace(events), 1, WORK)
    assert p.cause == "elementwise-path"
    slow = [kernel("gemv", 0.0, 3.0), kernel("flash_fwd", 3.0, 0.3)]
    assert explained(tmp_path, torch_trace(slow), 1, WORK).cause == "linear-path"
    copies = [span("gpu_memcpy", "Memcpy DtoD", 0.0, 5.0, 0, 7, bytes=64), kernel("gemv", 5.0, 1.0)]
    assert explained(tmp_path, torch_trace(copies), 1, WORK).cause == "memcpy-path"
    strange = [kernel("mystery", 0.0, 5.0), kernel("gemv", 5.0, 1.0)]
    found = explained(tmp_path, torch_trace(strange), 1, WORK)
    assert (found.cause, "kernel_classes.yaml" in found.next_step) == ("other-path", True)


def test_a_steps_bytes_by_class() -> None:
    """Two requests at contexts 4 and 6, a window of 5: caches of 4 and 5.5 positions' worth, 47.5 B on average."""
    traffic = DecodeTraffic(
        tensors_source="config", weight_read_bytes=1000, embedding_row_bytes=8, kv_bytes_per_context_token=10,
        sliding_caches=(SlidingCache(window=5, bytes_per_context_token=5, flop_per_context_token=2),),
        state_read_bytes=30, state_write_bytes=40, resident_weight_bytes=1008, linear_flop=500,
        attention_flop_per_context_token=4, state_flop=60,
    )  # fmt: skip
    moved = moved_by_class(traffic, [4, 6], 2)
    assert moved["linear"] == Moved(1000, 0, 1000)
    assert moved["attention"] == Moved(2 * ((40 + 55) // 2), 0, 2 * (16 + 22) // 2)
    assert moved["linear-attention"] == Moved(60, 80, 120)
    assert moved["kv-write"] == Moved(0, 20)
    stateless = traffic.model_copy(update={"state_read_bytes": 0, "state_write_bytes": 0, "state_flop": 0})
    assert "linear-attention" not in moved_by_class(stateless, [4, 6], 2)


def test_a_kernel_that_runs_into_the_first_step_leaves_no_gap_there(tmp_path: Path) -> None:
    """Two steps of 100 us, from 50 on: 50 of the first are a kernel that began before it; what begins in them is 2 x
    30."""
    events = [mark("decode_step", begin, 10.0) for begin in (50.0, 150.0, 250.0)]
    for begin, duration in ((0.0, 100.0), (120.0, 30.0), (220.0, 30.0), (250.0, 9.0)):
        events += [call("cudaLaunchKernel", begin, 1.0), kernel("gemv", begin, duration)]
    p = explained(tmp_path, torch_trace(events))
    assert (us(p.wall_s), us(p.busy_s), us(p.gaps_s)) == pytest.approx((100, 55, 45), abs=0.01)
    assert [us(gap.gap_s) for gap in p.longest_gaps] == pytest.approx([70, 20], abs=0.01)
    assert p.longest_gaps[-1].after == "gemv"


def test_idle_time_is_not_told_from_lost_kernels_without_a_launch(tmp_path: Path) -> None:
    kernels = [kernel("gemv", 10.0, 60.0, 0), kernel("gemv", 910.0, 60.0, 9)]
    p = explained(tmp_path, torch_trace(kernels))
    assert (p.status, p.cause, p.gaps_s) == ("incomplete", None, None)
    assert "12.5%" in (p.reason or "") and "no launch" in (p.reason or "")
    waiting = call("cudaStreamSynchronize", 0.0, 900.0)
    assert explained(tmp_path, torch_trace([*kernels, waiting])).status == "incomplete"
    busy = [kernel("gemv", 0.0, 60.0), kernel("gemv", 70.0, 60.0)]
    assert explained(tmp_path, torch_trace(busy)).status == "complete"


LAUNCHES = [call("cudaLaunchKernel", 10.0 * n, 5.0, n) for n in range(20)]


def test_a_trace_without_kernels_is_incomplete_never_idle(tmp_path: Path) -> None:
    empty = kernel("gemv", 5.0, 0.0)
    for events, devices in ((LAUNCHES, []), ([op("aten::mm", 0.0, 9.0)], ["AMD X"]), ([], []), ([empty], [])):
        p = explained(tmp_path, torch_trace(events, devices), num_steps=1)
        assert (p.status, p.gaps_s, p.cause, p.what_ifs) == ("incomplete", None, None, ())
        assert f"{len(events) if events is LAUNCHES else 0} launches" in (p.reason or "")
        assert "again" in p.next_step
    assert "AMD X" in (explained(tmp_path, torch_trace([op("a", 0.0, 1.0)], ["AMD X"])).reason or "")
    assert explained(tmp_path, '"Name","Calls","TotalDurationNs"\n"Total","0","0"\n').status == "incomplete"


def test_lost_kernels_are_incomplete_and_a_waiting_device_is_not(tmp_path: Path) -> None:
    every_other = [kernel("gemv", 10.0 * n + 6.0, 1.0, n) for n in range(0, 20, 2)]
    p = explained(tmp_path, torch_trace([*LAUNCHES, *every_other]))
    assert p.status == "incomplete"
    assert "10 of 20 launches" in (p.reason or "")
    all_of_them = [kernel("gemv", 10.0 * n + 6.0, 1.0, n) for n in range(20)]
    assert explained(tmp_path, torch_trace([*LAUNCHES, *all_of_them])).cause == "outside-kernels"
    at_the_end = explained(tmp_path, torch_trace([*LAUNCHES, *all_of_them[:-1]]))
    assert (at_the_end.status, any("1 launches" in note for note in at_the_end.notes)) == ("complete", True)
    busy = [kernel("gemv", 10.0 * n + 6.0, 19.0, n) for n in range(0, 20, 2)]
    found = explained(tmp_path, torch_trace([*LAUNCHES, *busy]))
    assert (found.status, any("10 launches" in note for note in found.notes)) == ("complete", True)


def test_launches_are_counted_where_nothing_correlates(tmp_path: Path) -> None:
    launches = [call("cudaLaunchKernel", 10.0 * n, 5.0) for n in range(20)]
    assert explained(tmp_path, torch_trace([*launches, kernel("gemv", 6.0, 1.0)])).status == "incomplete"
    every = [kernel("gemv", 10.0 * n + 6.0, 1.0) for n in range(20)]
    assert explained(tmp_path, torch_trace([*launches, *every])).status == "complete"


def test_a_cpu_whose_kernels_torch_cant_see_is_incomplete(tmp_path: Path) -> None:
    ops = [op("aten::mm", 0.0, 10.0), op("aten::mul", 90.0, 10.0)]
    p = explained(tmp_path, torch_trace(ops))
    assert p.status == "incomplete"
    assert "cover 20.0% of the time" in (p.reason or "")
    nested = [op("aten::linear", 0.0, 60.0), op("aten::addmm", 10.0, 40.0), op("aten::silu", 80.0, 20.0)]
    found = explained(tmp_path, torch_trace(nested))
    assert (us(found.busy_s), us(found.gaps_s)) == pytest.approx((80, 20), abs=0.01)
    assert {row.kernel_class: us(row.time_s) for row in found.classes} == pytest.approx(
        {"linear": 60, "elementwise": 20}, abs=0.01
    )


def test_the_device_with_the_most_work_is_told_of(tmp_path: Path) -> None:
    events = [kernel("gemv", 0.0, 5.0, device=0), kernel("gemv", 0.0, 9.0, device=1)]
    p = explained(tmp_path, torch_trace(events))
    assert (p.device, us(p.wall_s)) == ("GPU 1", pytest.approx(9, abs=0.01))
    assert any("GPU 0" in note for note in p.notes)


KERNELS = st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 0.3), st.booleans()), min_size=1, max_size=15)


@given(KERNELS, st.integers(1, 5))
def test_busy_and_gaps_are_the_wall(kernels: list[tuple[float, float, bool]], num_steps: int) -> None:
    work = tuple(
        Work("gemv" if one else "x", "kernel", start, dur, dur, "GPU 0", str(one)) for start, dur, one in kernels
    )
    p = explain(
        Trace("torch profiler", work, (Call("cudaLaunchKernel", "launch", 0.0, 0.0),)), "t", CLASS_OF, num_steps
    )
    assert p.busy_s is not None and p.gaps_s is not None and p.wall_s is not None
    wall_s = max(w.end_s for w in work) - min(w.start_s for w in work)
    assert p.wall_s * num_steps == pytest.approx(wall_s)
    assert p.busy_s + p.gaps_s == pytest.approx(p.wall_s)
    assert sum(row.time_s for row in p.gaps) == pytest.approx(p.gaps_s)
    assert p.busy_s <= sum(row.time_s for row in p.classes) + 1e-12
    assert sum(row.num_calls for row in p.classes) * num_steps == pytest.approx(len(work))
    assert all(0 <= row.wall_s <= p.wall_s for row in p.what_ifs)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["launch", "synchronize", "other"]))))
def test_what_spans_the_gaps_adds_up_to_them(calls: list[tuple[float, float, Any]]) -> None:
    from harness.timeline.gaps import split_by_span
    from harness.timeline.intervals import length

    gaps = [(0.1, 0.4), (0.6, 0.7), (1.2, 1.5)]
    parts = split_by_span(gaps, [Call("c", kind, start, dur) for start, dur, kind in calls])
    assert sum(length(part) for part in parts.values()) == pytest.approx(0.7)


def test_copies_take_no_place_among_the_largest_kernels(tmp_path: Path) -> None:
    copies = [span("gpu_memcpy", f"Memcpy {n}", 10.0 * n, 9.0, 0, 7, bytes=64) for n in range(3)]
    p = explained(tmp_path, torch_trace([*copies, kernel("gemv", 30.0, 5.0)]))
    assert [row.name for row in p.kernels] == ["gemv"]
