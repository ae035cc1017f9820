"""torch.profiler's Chrome JSON: CUDA, ROCm, and a CPU alone.

A trace of a CPU alone has operations (`cpu_op`, and marked launches of ours) that stand within each other: each counts
its own time only, but what torch does within a launch of ours is that launch's. With a GPU
an operation is what the host did, and no work of the device. ROCm 6.2's kernels have no grid and its copies no bytes:
those stand at the runtime's call, as a string.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.specs.trace import OWN_LAUNCH, Call, Mark, Trace, Work
from harness.timeline.intervals import own_times
from harness.traces.chrome import AGAIN, Span, call_kind, printable, shown, spans

FORMAT = "torch profiler"
_WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_CALLS = {"cuda_runtime", "cuda_driver"}
_MARKS = {"user_annotation": False, "gpu_user_annotation": True}


def is_of_torch(data: dict[str, Any]) -> bool:
    """By keys that no other profiler writes, or by the categories of its first events."""
    first = data["traceEvents"][:1000]
    categories = {event.get("cat") for event in first if isinstance(event, dict) and isinstance(event.get("cat"), str)}
    return "schemaVersion" in data or "deviceProperties" in data or bool(categories & {"cpu_op", *_WORK, *_CALLS})


def read_torch(path: Path, data: dict[str, Any]) -> Trace:
    """ConfigError names the event that is not as it should be."""
    wanted = {*_WORK, *_CALLS, *_MARKS, "cpu_op"}
    found = [span for span in spans(path, data) if span.category in wanted]
    origin_us = min((span.ts_us for span in found), default=0.0)
    by_category = {category: [s for s in found if s.category == category] for category in wanted}
    calls = tuple(_call(span, origin_us) for category in sorted(_CALLS) for span in by_category[category])
    sizes = {s.integer("correlation"): s.integer("size") for category in _CALLS for s in by_category[category]}
    work = tuple(_kernel(span, origin_us, sizes) for category in _WORK for span in by_category[category])
    names = _device_names(path, data)
    marked = (span for span in by_category["user_annotation"] if span.name.startswith(OWN_LAUNCH))
    launches = sorted(marked, key=lambda span: span.ts_us)
    if not work and not calls and not names:
        outside = [op for op in by_category["cpu_op"] if not _is_within(op, launches)]
        work = _operations([*outside, *launches], origin_us)
    marks = (
        _mark(span, origin_us)
        for category in _MARKS
        for span in by_category[category]
        if not span.name.startswith(OWN_LAUNCH)
    )
    return Trace(FORMAT, work, calls, tuple(marks), device_names=tuple(dict.fromkeys(names)))


def _device_names(path: Path, data: dict[str, Any]) -> tuple[str, ...]:
    gpus = data.get("deviceProperties") or []
    if not isinstance(gpus, list):
        raise ConfigError(f"{path}: deviceProperties is {shown(gpus)}, not a list", AGAIN)
    return tuple(printable(str(gpu.get("name"))) for gpu in gpus if isinstance(gpu, dict))


def _is_within(op: Span, launches: Sequence[Span]) -> bool:
    """Of the launches of a thread, which stand one behind another: torch's work for one of them is that launch's."""
    index = bisect_right(launches, op.ts_us, key=lambda launch: launch.ts_us) - 1
    return index >= 0 and launches[index].tid == op.tid and op.ts_us < launches[index].ts_us + launches[index].dur_us


def _times(span: Span, origin_us: float) -> tuple[float, float]:
    """(start, duration) in seconds. Microseconds are subtracted first: since boot there are 10^12 of them."""
    return (span.ts_us - origin_us) * 1e-6, span.dur_us * 1e-6


def _call(span: Span, origin_us: float) -> Call:
    return Call(span.name, call_kind(span.name), *_times(span, origin_us), _correlation(span))


def _mark(span: Span, origin_us: float) -> Mark:
    return Mark(
        span.name, *_times(span, origin_us), on_device=_MARKS[span.category], number=span.integer("External id")
    )


def _correlation(span: Span) -> str | None:
    number = span.integer("correlation")
    return None if number is None else str(number)


def _kernel(span: Span, origin_us: float, sizes: dict[int | None, int | None]) -> Work:
    start_s, duration_s = _times(span, origin_us)
    number = span.integer("bytes")
    return Work(
        span.name, _WORK[span.category], start_s, duration_s, duration_s,  # type: ignore[arg-type]
        device=printable(f"GPU {span.args.get('device', span.pid)}"), stream=str(span.args.get("stream", span.tid)),
        grid=_shape(span.args.get("grid")), block=_shape(span.args.get("block")),
        num_bytes=sizes.get(span.integer("correlation")) if number is None else number,
        correlation=_correlation(span),
    )  # fmt: skip


def _shape(value: Any) -> tuple[int, ...] | None:
    whole = isinstance(value, list) and all(isinstance(part, int) for part in value)
    return tuple(value) if whole else None


def _operations(ops: Sequence[Span], origin_us: float) -> tuple[Work, ...]:
    """Of each thread apart."""
    work: list[Work] = []
    for tid, group in groupby(sorted(ops, key=lambda op: str(op.tid)), key=lambda op: str(op.tid)):
        of_thread = list(group)
        times = [_times(op, origin_us) for op in of_thread]
        own = own_times([(start_s, start_s + duration_s) for start_s, duration_s in times])
        work += [
            Work(op.name, "op", start_s, duration_s, own_s, device="CPU", stream=tid)
            for op, (start_s, duration_s), own_s in zip(of_thread, times, own, strict=True)
        ]
    return tuple(work)
