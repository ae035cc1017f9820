"""What Chrome's trace event format has in common over profilers: complete events, checked one by one."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.specs.trace import CallKind

AGAIN = "take the trace again, or export it again: the file is damaged"


MOST_US = 1e16
"""Of a time: three centuries, so that those since 1970 fit."""


def printable(name: str) -> str:
    """A name as any terminal and any encoding takes it: control characters and half a surrogate pair as escapes."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def shown(value: object) -> str:
    """A wrong value in a complaint: its begin."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


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
        if isinstance(value, bool) or not re.fullmatch("[0-9]{1,18}", str(value)):
            raise ConfigError(f"{self.where}: args.{key} is {shown(value)}, not a whole number below 10^18", AGAIN)
        return int(value)


def parse(path: Path, text: bytes) -> dict[str, Any]:
    """The file as one object with a list of events. ConfigError for what is not JSON, and for another JSON."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as fault:
        raise ConfigError(f"{path}:{fault.lineno}:{fault.colno}: not valid JSON: {fault.msg}", AGAIN) from None
    except (ValueError, RecursionError) as fault:  # ValueError: other than UTF-8, or thousands of digits
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
        for key in ("pid", "tid"):
            if not isinstance(event.get(key), int | float | str | None):
                raise ConfigError(f"{where}: {key} is {shown(event[key])}, not a number or a name", AGAIN)
        yield where, event


def spans(path: Path, data: dict[str, Any]) -> Iterator[Span]:
    """Every complete event of the file."""
    for where, event in events(path, data):
        if event.get("ph") == "X":
            args = event.get("args")
            yield Span(
                where, _text(where, event, "name"), _text(where, event, "cat"), event.get("pid"), event.get("tid"),
                _number(where, event, "ts", -MOST_US), _number(where, event, "dur", 0.0),
                args if isinstance(args, dict) else {},
            )  # fmt: skip


def _text(where: str, event: dict[str, Any], key: str) -> str:
    value = event.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} is {shown(value)}, not a text", AGAIN)
    return printable(value)


def _number(where: str, event: dict[str, Any], key: str, least: float) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MOST_US:
        raise ConfigError(f"{where}: {key} is {shown(value)}, not a time in microseconds", AGAIN)
    return float(value)


def call_kind(name: str) -> CallKind:
    """What a call into CUDA's or HIP's runtime or driver does, by its name."""
    if "Synchroni" in name:
        return "synchronize"
    if "Memcpy" in name or "Memset" in name:
        return "memcpy"
    return "launch" if "Launch" in name and "HostFunc" not in name else "other"
