"""What Chrome's trace event format has in common over profilers: complete events, checked one by one."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.specs.trace import CallKind

AGAIN = "take the trace again, or export it again: the file is damaged"


class Span(NamedTuple):
    """A complete event, `ph` X: name, category, where it stands, and its arguments. Microseconds."""

    where: str
    """File and place, for complaints."""
    name: str
    category: str
    pid: Any
    tid: Any
    ts_us: float
    dur_us: float
    args: dict[str, Any]

    def integer(self, key: str) -> int | None:
        """An argument that may be a number or a string of digits; null where it is not there."""
        value = self.args.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
            raise ConfigError(f"{self.where}: args.{key} is {value!r}, not a whole number", AGAIN)
        return int(value)


def parse(path: Path, text: bytes) -> dict[str, Any]:
    """The file as one object with a list of events. ConfigError for what is not JSON, and for another JSON."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as fault:
        raise ConfigError(f"{path}:{fault.lineno}:{fault.colno}: not valid JSON: {fault.msg}", AGAIN) from None
    except (UnicodeDecodeError, RecursionError) as fault:
        raise ConfigError(f"{path}: not valid JSON: {fault}", AGAIN) from None
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise ConfigError(f"{path}: JSON without a list `traceEvents`", KNOWN)
    return data


KNOWN = "known: torch.profiler's Chrome JSON, hipprof's Chrome JSON (both also .gz), hipprof's *.hipkernel.csv"


def events(path: Path, data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, event) of each."""
    for index, event in enumerate(data["traceEvents"]):
        where = f"{path}: traceEvents[{index}]"
        if not isinstance(event, dict):
            raise ConfigError(f"{where}: is {type(event).__name__}, not an event", AGAIN)
        yield where, event


def spans(path: Path, data: dict[str, Any]) -> Iterator[Span]:
    """Every complete event of the file."""
    for where, event in events(path, data):
        if event.get("ph") == "X":
            args = event.get("args")
            yield Span(
                where, str(event.get("name", "")), str(event.get("cat", "")), event.get("pid"), event.get("tid"),
                _number(where, event, "ts", -math.inf), _number(where, event, "dur", 0.0),
                args if isinstance(args, dict) else {},
            )  # fmt: skip


def _number(where: str, event: dict[str, Any], key: str, least: float) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise ConfigError(f"{where}: {key} is {value!r}, not a time in microseconds", AGAIN)
    return float(value)


def call_kind(name: str) -> CallKind:
    """What a call into CUDA's or HIP's runtime or driver does, by its name."""
    if "Synchroni" in name:
        return "synchronize"
    if "Memcpy" in name or "Memset" in name:
        return "memcpy"
    return "launch" if "Launch" in name and "HostFunc" not in name else "other"
