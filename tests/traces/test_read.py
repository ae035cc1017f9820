"""Every format gives the same table; what is damaged or unknown is named."""

import gzip
import json
import re
from pathlib import Path

import pytest
from trace_files import (
    SINCE_BOOT_US,
    STATISTICS,
    call,
    hipprof_trace,
    kernel,
    mark,
    op,
    save,
    span,
    torch_trace,
)

from harness.errors import ConfigError
from harness.specs.trace import KernelSum, Mark
from harness.traces.read import read_trace

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"


@pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz"])
def test_a_torch_trace_of_cuda(tmp_path: Path, name: str) -> None:
    events = [
        call("cudaLaunchKernel", 0.0, 5.0, 1),
        kernel("gemv", 10.5, 2.25, 1),
        call("cudaMemcpyAsync", 12.0, 1.0, 2),
        span("gpu_memcpy", "Memcpy HtoD", 20.0, 4.0, 0, 7, device=0, stream=7, correlation=2, bytes=1024),
        span("gpu_memset", "Memset (Device)", 25.0, 1.0, 0, 7, device=0, stream=7, bytes=64),
        mark("decode_step", 10.5, 13.5),
        op("aten::mm", 0.0, 9.0),
    ]
    trace = read_trace(save(tmp_path / name, torch_trace(events, ["NVIDIA X", "NVIDIA X"])))
    gemv, copied, filled = trace.work
    assert (gemv.name, gemv.kind, gemv.device, gemv.stream, gemv.correlation) == ("gemv", "kernel", "GPU 0", "7", "1")
    assert (gemv.grid, gemv.block) == ((4, 1, 1), (128, 1, 1))
    assert gemv.start_s == pytest.approx(10.5e-6, abs=1e-9), "from the first event, to the clock's nanosecond"
    assert gemv.duration_s == gemv.own_s == pytest.approx(2.25e-6, abs=1e-12)
    assert (copied.kind, copied.num_bytes, filled.kind, filled.num_bytes) == ("memcpy", 1024, "memset", 64)
    assert [(c.name, c.kind) for c in trace.calls] == [("cudaLaunchKernel", "launch"), ("cudaMemcpyAsync", "memcpy")]
    assert [(m.name, m.on_device) for m in trace.marks] == [("decode_step", True)]
    assert (trace.format, trace.device_names) == ("torch profiler", ("NVIDIA X",))


def test_rocms_kernels_have_no_grid_and_its_copies_take_their_size_from_the_call(tmp_path: Path) -> None:
    events = [
        call("hipMemcpyWithStream", 0.0, 9.0, 7, size="2560", kind="1"),
        span("gpu_memcpy", "Memcpy HtoD", 3.0, 2.0, 2, 0, device=2, stream=0, correlation=7, kind="HtoD"),
        call("hipExtModuleLaunchKernel", 9.0, 1.0, 8),
        span("kernel", "Cijk_A", 12.0, 2.0, 2, 0, device=2, stream=0, correlation=8, kind="Dispatch Kernel"),
    ]
    trace = read_trace(save(tmp_path / "t.json", torch_trace(events)))
    by_kind = {w.kind: w for w in trace.work}
    assert (by_kind["memcpy"].num_bytes, by_kind["kernel"].num_bytes) == (2560, None)
    assert (by_kind["kernel"].grid, by_kind["kernel"].device) == (None, "GPU 2")


def test_operations_of_a_cpu_count_their_own_time_once(tmp_path: Path) -> None:
    """linear 100 = t 10 + addmm 60 (of which copy_ 20) + 30 of its own; another thread's ops are no part of it."""
    events = [
        op("aten::linear", 0.0, 100.0), op("aten::t", 5.0, 10.0), op("aten::addmm", 20.0, 60.0),
        op("aten::copy_", 30.0, 20.0), op("aten::mul", 50.0, 80.0, thread=5),
        mark("decode_step", 0.0, 130.0, on_device=False),
    ]  # fmt: skip
    trace = read_trace(save(tmp_path / "t.json", torch_trace(events)))
    own_us = {w.name: w.own_s * 1e6 for w in trace.work}
    expected = {"aten::linear": 30, "aten::t": 10, "aten::addmm": 40, "aten::copy_": 20, "aten::mul": 80}
    assert own_us == pytest.approx(expected, abs=2e-3)
    assert {w.device for w in trace.work} == {"CPU"}
    assert not trace.marks[0].on_device


def test_operations_are_no_work_where_there_is_a_gpu(tmp_path: Path) -> None:
    """They are what the host did: as work they would hide that the kernels are missing."""
    ops = [op("aten::mm", 0.0, 9.0)]
    assert read_trace(save(tmp_path / "a.json", torch_trace(ops, ["NVIDIA X"]))).work == ()
    launched = [*ops, call("cudaLaunchKernel", 1.0, 1.0, 1)]
    assert read_trace(save(tmp_path / "b.json", torch_trace(launched))).work == ()


@pytest.mark.torch
def test_a_real_trace_of_a_cpu(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    layer, x = torch.nn.Linear(32, 16), torch.randn(1, 32)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with record_function("decode_step"):
                layer(x).argmax(-1)
    profiler.export_chrome_trace(str(tmp_path / "t.json.gz"))
    trace = read_trace(tmp_path / "t.json.gz")
    names = [w.name for w in trace.work]
    assert names.count("aten::addmm") == names.count("aten::argmax") == 3
    assert [m.name for m in trace.marks] == ["decode_step"] * 3
    outer = [w for w in trace.work if w.name in ("aten::linear", "aten::argmax")]
    assert sum(w.own_s for w in trace.work) == pytest.approx(sum(w.duration_s for w in outer), abs=1e-7)


def test_a_hipprof_trace(tmp_path: Path) -> None:
    trace = read_trace(save(tmp_path / "t.json", hipprof_trace()))
    copied, gemv = trace.work
    assert (copied.kind, copied.num_bytes, copied.device, copied.stream) == ("memcpy", 4096, "GPU 3", "H2D")
    assert (gemv.kind, gemv.start_s, gemv.duration_s) == ("kernel", pytest.approx(85e-6), pytest.approx(30e-6))
    assert [(c.kind, c.correlation) for c in trace.calls] == [("memcpy", "55/1"), ("launch", "55/2")]
    assert gemv.correlation == "55/2"


def test_hipprofs_statistics_are_sums(tmp_path: Path) -> None:
    trace = read_trace(save(tmp_path / "t.hipkernel.csv", STATISTICS))
    assert trace.sums == (
        KernelSum("gemv<float>(float const*, int)", 3, pytest.approx(30e-6)),
        KernelSum("my_own(int)", 2, pytest.approx(10e-6)),
    )
    assert trace.work == ()
    assert trace.notes == ()


def test_columns_may_stand_in_any_order_among_others(tmp_path: Path) -> None:
    """A newer version's file: quotes within a name, a byte-order mark, Windows' line ends, no total."""
    text = '\ufeff"StdDev","TotalDurationNs","Calls","Name"\r\n"1.5","70","2","a ""b"", c"\r\n'
    trace = read_trace(save(tmp_path / "t.csv", text))
    assert trace.sums == (KernelSum('a "b", c', 2, pytest.approx(70e-9)),)
    assert "no row Total" in trace.notes[0]


def test_statistics_of_the_hosts_calls_hold_no_kernel(tmp_path: Path) -> None:
    text = (
        '"Name","Calls","TotalDurationNs"\n"hipMalloc","1","5"\n"__hipPopCallConfiguration","1","5"\n"Total","2","10"\n'
    )
    assert read_trace(save(tmp_path / "t.hiptrace.csv", text)).sums == ()
    only_total = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"Total","0","0","0","100.0"\n'
    assert read_trace(save(tmp_path / "total.csv", only_total)).sums == ()


WHOLE = json.dumps(torch_trace([kernel("gemv", 0.0, 1.0)]))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "no known trace format"),
        ("\0\1SQLite format 3", "no known trace format"),
        (WHOLE[: len(WHOLE) // 2], r"t:1:\d+: not valid JSON"),
        ('{"traceEvents": [\n{"ph": "X" "dur": 1}]}', "t:2:12: not valid JSON"),
        ("[1, 2]", "without a list `traceEvents`"),
        ('{"traceEvents": [{"ph": "X", "cat": "ipc", "name": "a", "ts": 1, "dur": 1}]}', "no known profiler"),
        ('{"schemaVersion": 1, "traceEvents": [7]}', r"traceEvents\[0\]: is int"),
        (WHOLE.replace('"dur": 1.0', '"dur": "x"'), r"traceEvents\[4\]: dur is 'x'"),
        (WHOLE.replace('"dur": 1.0', '"dur": -1.0'), r"traceEvents\[4\]: dur is -1.0"),
        (WHOLE.replace(f'"ts": {SINCE_BOOT_US}', '"ts": NaN'), r"traceEvents\[4\]: ts is nan"),
        (WHOLE.replace('"device": 0', '"correlation": "0x1"'), r"args.correlation is '0x1'"),
        (STATISTICS.replace("Calls", "Count"), "t:1: no column 'Calls'"),
        (STATISTICS.replace('"10000"', '"ten"', 1), ""),
        (STATISTICS.replace('"30000"', '"30k"'), "t:2: column TotalDurationNs is '30k'"),
        (STATISTICS.replace('"2","10000"', '"2"'), "t:3: not the 5 columns"),
        (STATISTICS.replace('"my_own(int)"', '""'), "t:3: column Name is empty"),
        (STATISTICS.replace('"my_own(int)","2","10000","5000","25.0"\n', ""), "add up to 3 calls .* Total says 5"),
        (STATISTICS[: STATISTICS.rindex("Total") + 3], "t:4: not valid CSV|t:3: not valid CSV"),
        (STATISTICS[: STATISTICS.rindex(",")], "t:4: not the 5 columns"),
    ],
)
def test_what_is_damaged_or_unknown_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = save(tmp_path / "t", text)
    if not complaint:
        assert read_trace(path).sums is not None, "a column that nobody reads may hold anything"
        return
    with pytest.raises(ConfigError) as fault:
        read_trace(path)
    assert re.search(complaint, fault.value.what), fault.value.what
    assert str(path) in fault.value.what


NINES = "9" * 400


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (WHOLE.replace('"dur": 1.0', f'"dur": {NINES}'), r"traceEvents\[4\]: dur is 9{37}\.\.\., not"),
        (WHOLE.replace('"dur": 1.0', '"dur": 1e308'), r"traceEvents\[4\]: dur is 1e\+308"),
        (WHOLE.replace('"dur": 1.0', f'"dur": {NINES * 12}'), "t: not valid JSON: Exceeds the limit"),
        (WHOLE.replace('"device": 0', f'"correlation": {NINES}'), r"args.correlation is 9{37}\.\.\."),
        (WHOLE.replace('"device": 0', f'"bytes": "{NINES * 12}"'), r"args.bytes is '9{36}\.\.\."),
        (WHOLE.replace('"cat": "kernel"', '"cat": ["kernel"]'), r"traceEvents\[4\]: cat is \['kernel'\], not a text"),
        (WHOLE.replace('"name": "gemv"', '"name": null'), r"traceEvents\[4\]: name is None"),
        (WHOLE.replace('"deviceProperties": []', '"deviceProperties": 5'), "t: deviceProperties is 5, not a list"),
        (WHOLE.replace('"pid": 99', '"pid": [99]'), r"traceEvents\[0\]: pid is \[99\]"),
        ('{"traceEvents": [{"ph": "X", "cat": ["kernel"], "name": "a", "ts": 1, "dur": 1}]}', "no known profiler"),
        (json.dumps(hipprof_trace()).replace('"pid": 1,', '"pid": [1],', 1), r"traceEvents\[0\]: pid is \[1\]"),
        (STATISTICS.replace('"30000"', NINES), "t:2: column TotalDurationNs is '9"),
        (STATISTICS.replace('"3"', NINES * 12), "t:2: column Calls is '9"),
        (STATISTICS.replace('"2"', '"0"'), "t:3: column Calls is 0"),
        (STATISTICS.replace("my_own", "a" * 200_000), "t:3: not valid CSV: field larger"),
    ],
)
def test_numbers_past_all_bounds_and_values_of_another_type_are_named(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as fault:
        read_trace(save(tmp_path / "t", text))
    assert re.search(complaint, fault.value.what), fault.value.what
    assert len(fault.value.what) < 300 + len(str(tmp_path))


def test_names_are_printable_whatever_the_file_holds(tmp_path: Path) -> None:
    """A colour's escape, a zero byte and half a surrogate pair reach neither terminal nor a file as they are."""
    strange, tame = "a\x1b[31m\0\n\ud800b c", r"a\x1b[31m\x00\n\ud800b c"
    assert read_trace(save(tmp_path / "t", torch_trace([kernel(strange, 0.0, 1.0)]))).work[0].name == tame
    trace = read_trace(save(tmp_path / "t", STATISTICS.replace("my_own", "a\x1b[31m")))
    assert (trace.sums or ())[1].name == r"a\x1b[31m(int)"


def test_a_byte_order_mark_may_stand_before_json(tmp_path: Path) -> None:
    assert len(read_trace(save(tmp_path / "t", "\ufeff" + WHOLE)).work) == 1


def test_a_packed_file_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    whole = gzip.compress(WHOLE.encode())
    for content in (whole[: len(whole) // 2], whole[:-9] + b"\0" * 9, whole[:12] + b"\xff" * 40):
        (tmp_path / "t.json.gz").write_bytes(content)
        with pytest.raises(ConfigError, match="damaged gzip"):
            read_trace(tmp_path / "t.json.gz")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match=r"No such file|Is a directory"):
            read_trace(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ConfigError, match="neither JSON nor CSV"):
        read_trace(tmp_path / "bytes")


def sample(name: str) -> Path:
    path = SAMPLES / name
    if not path.is_file():
        pytest.skip("the sample files are not here")
    return path


def test_real_files_of_torch() -> None:
    rocm = read_trace(sample("torch_trace/rocm62_mi250.json.gz"))
    assert sum(w.kind == "kernel" for w in rocm.work) == 14
    assert [w.num_bytes for w in rocm.work if w.kind == "memcpy"] == [2560, 2560]
    launched = {c.correlation for c in rocm.calls}
    assert all(w.correlation in launched for w in rocm.work)
    assert (
        Mark("ProfilerStep#1", pytest.approx(266.766e-6, abs=2e-9), pytest.approx(1031.368e-6), True, 1) in rocm.marks
    )
    cuda = read_trace(sample("torch_trace/cuda_small.json.gz"))
    assert [(w.name, w.block) for w in cuda.work] == [("triton_poi_fused_add_cos_sin_0", (128, 1, 1))]


def test_real_files_of_hipprof() -> None:
    assert [s.num_calls for s in read_trace(sample("hipprof/hipkernel.csv")).sums or ()] == [1, 1]
    assert read_trace(sample("hipprof/hiptrace.csv")).sums == ()
    trace = read_trace(sample("hipprof/trace.json"))
    assert [w.kind for w in trace.work].count("memset") == 3
    assert [w.duration_s for w in trace.work if w.kind == "kernel"] == [pytest.approx(20.799e-6)]


def test_launches_of_ours_are_work_with_all_that_torch_does_in_them(tmp_path: Path) -> None:
    """Marks of another thread hold nothing of this one's."""
    launches = [
        mark("harness::linear::qkv", 10.0, 20.0, on_device=False),
        mark("harness::sampling::argmax", 50.0, 5.0, on_device=False),
        mark("decode_step", 0.0, 100.0, on_device=False),
    ]
    events = [*launches, op("aten::mm", 12.0, 15.0), op("aten::add", 40.0, 5.0)]
    for event in events:
        event["tid"] = 7
    trace = read_trace(save(tmp_path / "t.json", torch_trace(events)))
    assert sorted((work.name, round(work.own_s * 1e6, 3)) for work in trace.work) == [
        ("aten::add", 5.0), ("harness::linear::qkv", 20.0), ("harness::sampling::argmax", 5.0),
    ]  # fmt: skip
    assert [found.name for found in trace.marks] == ["decode_step"]
