"""hipprof's files (Hygon DTK): a Chrome JSON with a timeline, and CSV statistics with sums alone.

What a row of the JSON is, its process says: "[n] Compute on Device 0 ...", "[n] Memory Copy on Device 0 ...",
"[n] Runtime API ...". A call and its kernel share `index`. The statistics of kernels (*.hipkernel.csv) and of the
host's calls (*.hiptrace.csv) have the same columns, and end in a row "Total".
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from harness.errors import ConfigError
from harness.specs.trace import Call, KernelSum, Trace, Work
from harness.traces.chrome import AGAIN, Span, call_kind, events, printable, shown, spans

FORMAT, CSV_FORMAT = "hipprof", "hipprof statistics"
_PROCESS = re.compile(r"\[\d+\] (Runtime API|Compute|Memory Copy)(?: on Device (\d+))?")
_HOST_CALL = re.compile(r"(__)?hip[A-Z]\w*")
NAME, CALLS, TOTAL_NS = COLUMNS = "Name", "Calls", "TotalDurationNs"
Role = tuple[str, str]
"""(Runtime API, Compute or Memory Copy; the device)."""


def is_of_hipprof(data: dict[str, Any]) -> bool:
    """By its names of processes."""
    return any(isinstance(event, dict) and _role(event) for event in data["traceEvents"])


def _role(event: dict[str, Any]) -> Role | None:
    args = event.get("args")
    if event.get("name") != "process_name" or not isinstance(args, dict):
        return None
    found = _PROCESS.match(str(args.get("name")))
    return None if found is None else (found[1], f"GPU {found[2] or 0}")


def read_hipprof(path: Path, data: dict[str, Any]) -> Trace:
    """ConfigError names the event that is not as it should be."""
    roles = {event.get("pid"): role for _, event in events(path, data) if (role := _role(event))}
    found = [(span, roles[span.pid]) for span in spans(path, data) if span.pid in roles]
    origin_us = min((span.ts_us for span, _ in found), default=0.0)
    calls = (_call(span, origin_us) for span, (what, _) in found if what == "Runtime API")
    work = (_work(span, device, what, origin_us) for span, (what, device) in found if what != "Runtime API")
    return Trace(FORMAT, tuple(work), tuple(calls))


def _correlation(span: Span) -> str | None:
    """Several processes each count from one."""
    index = span.integer("index")
    return None if index is None else f"{span.args.get('pid')}/{index}"


def _call(span: Span, origin_us: float) -> Call:
    start_s = (span.ts_us - origin_us) * 1e-6
    return Call(span.name, call_kind(span.name), start_s, span.dur_us * 1e-6, _correlation(span))


def _work(span: Span, device: str, what: str, origin_us: float) -> Work:
    kind: Literal["kernel", "memcpy", "memset"] = "memset" if span.name.startswith("Memset") else "memcpy"
    start_s, duration_s = (span.ts_us - origin_us) * 1e-6, span.dur_us * 1e-6
    return Work(
        span.name, "kernel" if what == "Compute" else kind, start_s, duration_s, duration_s, device, str(span.tid),
        num_bytes=span.integer("Bytes"), correlation=_correlation(span),
    )  # fmt: skip


def is_statistics(header: str) -> bool:
    """Whether a first line has the columns of the statistics, or most of them."""
    try:
        columns = next(csv.reader([header]), [])
    except csv.Error:  # Python 3.10 refuses a zero byte
        return False
    return NAME in columns and any(column.endswith("DurationNs") or column == CALLS for column in columns)


def read_statistics(path: Path, text: str) -> Trace:
    """Sums of kernels. The host's calls are no kernels: a file of those alone has an empty sum.

    Raises ConfigError with file, line and column for a row that can't be read, and for a total that is not the sum.
    """
    rows = list(_rows(path, text))
    total = next((row for row in rows if row.name == "Total"), None)
    rows = [row for row in rows if row is not total]
    notes = () if total else ("it has no row Total: the file may be cut off",)
    if total is not None and rows:
        _check_total(path, rows, total)
    return Trace(CSV_FORMAT, sums=tuple(r for r in rows if not _HOST_CALL.fullmatch(r.name)), notes=notes)


def _check_total(path: Path, rows: list[KernelSum], total: KernelSum) -> None:
    calls, time_s = sum(row.num_calls for row in rows), sum(row.total_s for row in rows)
    if calls != total.num_calls or abs(time_s - total.total_s) > 1e-9 * len(rows):
        raise ConfigError(
            f"{path}: its rows add up to {calls} calls and {time_s:.9f} s, its Total says {total.num_calls} and"
            f" {total.total_s:.9f} s", "rows are missing or were changed: take the statistics again",
        )  # fmt: skip


def _rows(path: Path, text: str) -> Iterator[KernelSum]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        for column in COLUMNS:
            if column not in (reader.fieldnames or ()):
                raise ConfigError(
                    f"{path}:1: no column {column!r} among {', '.join(map(printable, reader.fieldnames or ()))}",
                    "give hipprof's *.hipkernel.csv as it was written",
                )
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise ConfigError(f"{where}: not the {len(reader.fieldnames or ())} columns of the first line", AGAIN)
            yield KernelSum(_text(where, row), _calls(where, row), _whole(where, row, TOTAL_NS) * 1e-9)
    except csv.Error as fault:
        raise ConfigError(f"{path}:{reader.reader.line_num}: not valid CSV: {fault}", AGAIN) from None


def _text(where: str, row: dict[str, str]) -> str:
    value = row[NAME]
    if not value:
        raise ConfigError(f"{where}: column {NAME} is empty", AGAIN)
    return printable(value)


def _calls(where: str, row: dict[str, str]) -> int:
    """Only a total may be of no call at all."""
    num_calls = _whole(where, row, CALLS)
    if not num_calls and row[NAME] != "Total":
        raise ConfigError(f"{where}: column {CALLS} is 0: a kernel that never ran has no time", AGAIN)
    return num_calls


def _whole(where: str, row: dict[str, str], column: str) -> int:
    value = row[column]
    if not re.fullmatch("[0-9]{1,18}", value.strip()):
        raise ConfigError(f"{where}: column {column} is {shown(value)}, not a whole number below 10^18", AGAIN)
    return int(value)
