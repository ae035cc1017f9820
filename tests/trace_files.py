"""Small traces of every format, made here: each event stands where a test puts it. Times in microseconds."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SINCE_BOOT_US = 4203669603000.0
"""Real traces begin there: seconds of such a size have lost the nanoseconds."""
Event = dict[str, Any]


def span(category: str, name: str, ts: float, dur: float, pid: Any = 1, tid: Any = 1, **args: Any) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": SINCE_BOOT_US + ts, "dur": dur,
        "args": args,
    }  # fmt: skip


def kernel(name: str, ts: float, dur: float, correlation: int | None = None, stream: int = 7, device: int = 0) -> Event:
    """As CUDA's: with grid and block."""
    args = {"device": device, "stream": stream, "grid": [4, 1, 1], "block": [128, 1, 1]}
    args |= {} if correlation is None else {"correlation": correlation}
    return span("kernel", name, ts, dur, device, stream, **args)


def call(name: str, ts: float, dur: float, correlation: int | None = None, **args: Any) -> Event:
    args |= {} if correlation is None else {"correlation": correlation}
    return span("cuda_runtime", name, ts, dur, 99, 99, **args)


def op(name: str, ts: float, dur: float, thread: int = 99) -> Event:
    return span("cpu_op", name, ts, dur, 99, thread)


def mark(name: str, ts: float, dur: float, on_device: bool = True) -> Event:
    return span("gpu_user_annotation" if on_device else "user_annotation", name, ts, dur)


def torch_trace(events: Iterable[Event], devices: Sequence[str] = ()) -> dict[str, Any]:
    """With the rows beside complete events that a real one has."""
    others: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": 99, "tid": 0, "ts": 0.0, "args": {"name": "python"}},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 7, "ts": 3.0, "bp": "e"},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9.0},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 0.0, "dur": 9e9},
    ]
    properties = [{"id": index, "name": name} for index, name in enumerate(devices)]
    return {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": [*others, *events]}


def save(path: Path, content: Any) -> Path:
    """JSON, or text as it is; packed where the name says so."""
    text = content if isinstance(content, str) else json.dumps(content)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def hipprof_trace() -> dict[str, Any]:
    """A copy of 20 us, then a kernel of 30 after 50 of launching: 20 + 60 idle + 30 = 110 us."""

    def row(pid: int, tid: str, name: str, ts: float, dur: float, index: int, **args: Any) -> Event:
        return {
            "ph": "X", "cat": "HIP", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": {"BeginNs": str(int(ts * 1000)), "pid": 55, "index": index, **args},
        }  # fmt: skip

    names = {1: "[1] Runtime API IP:1.2.3.4", 2: "[2] Memory Copy on Device 3 IP", 3: "[3] Compute on Device 3 IP"}
    return {
        "traceEvents": [
            *({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names.items()),
            row(1, "Thread55", "hipMemcpy", 95.0, 30.0, 1),
            row(1, "Thread55", "hipLaunchKernel", 130.0, 50.0, 2),
            row(2, "H2D", "HostToDevice", 100.0, 20.0, 1, Bytes=4096),
            {"ph": "s", "cat": "DataFlow", "id": 1, "pid": 1, "tid": "Thread55", "ts": 100.0, "name": "dep"},
            row(3, "Stream0", "gemv(float const*)", 180.0, 30.0, 2),
        ]
    }


STATISTICS = """\
"Name","Calls","TotalDurationNs","AverageNs","Percentage"
"gemv<float>(float const*, int)","3","30000","10000","75.0"
"my_own(int)","2","10000","5000","25.0"
"Total","5","40000","8000","100.0"
"""
