"""Run folders: created before anything is measured, appended to as it happens, and readable after any end.

record.json is replaced atomically, so it is always whole. samples.jsonl grows line by line, so a killed run keeps
what it measured. The process that writes a run holds a lock on its samples; a run that says `running` while nobody
holds the lock is shown as `interrupted`, whatever killed it.
"""

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated

from pydantic import Field, TypeAdapter, ValidationError

from harness.errors import ConfigError, HarnessError
from harness.specs.ab import AbRecord
from harness.specs.ab_run import AbRunRecord
from harness.specs.base import Frozen
from harness.specs.event import EVENT, Event
from harness.specs.record import Failure, RunRecord

Record = RunRecord | AbRecord | AbRunRecord
Say = Callable[[str], None]
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])
RECORD, SAMPLES, LOG = "record.json", "samples.jsonl", "log.txt"


def runs_dir(option: Path | None) -> Path:
    """--runs-dir, else HARNESS_RUNS_DIR, else ./runs."""
    return option or Path(os.environ.get("HARNESS_RUNS_DIR") or "runs")


class RunFolder:
    """The folder of a run that is being made. Use as a context manager; the lock is held until its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self._samples = _open(path / SAMPLES, "xb")
        fcntl.flock(self._samples, fcntl.LOCK_EX)
        self._log = _open(path / LOG, "xb")

    @classmethod
    def create(cls, parent: Path, device: str, name: str) -> "RunFolder":
        """`<UTC>-<device>-<name>-<id8>`. Raises ConfigError when the folder can't be made."""
        now = datetime.now(timezone.utc)  # milliseconds, so that names sort in the order of their runs
        stamp = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", device).strip("-") or "device"
        path = parent / f"{stamp}-{slug}-{name}-{secrets.token_hex(4)}"
        with _explained(path):
            path.mkdir(parents=True)
        return cls(path)

    def write(self, record: Record) -> None:
        """Replace record.json as a whole: written beside, forced to disk, renamed."""
        write_record(self.path, record)

    def append(self, event: Frozen) -> None:
        """One line of samples.jsonl, handed to the operating system at once: it outlives this process."""
        with _explained(self.path / SAMPLES):
            self._samples.write(event.model_dump_json().encode() + b"\n")
            self._samples.flush()

    def log(self, text: str) -> None:
        """One line of log.txt."""
        with _explained(self.path / LOG):
            self._log.write(text.encode() + b"\n")
            self._log.flush()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._samples, self._log):
            with contextlib.suppress(OSError):  # a full disk fails once more on the buffer it refused, and was reported
                file.close()


def silent(line: str) -> None:
    """A Say for nobody."""


def teller(folder: RunFolder, tell: Say) -> Say:
    """Says a line to the user and to the run's log."""

    def say(line: str) -> None:
        folder.log(line)
        tell(line)

    return say


@contextlib.contextmanager
def end_recorded(update: Callable[..., None]) -> Iterator[None]:
    """Whatever ends a run early is in its record before it goes on up. update(**fields) changes the record."""
    try:
        yield
    except KeyboardInterrupt:
        update(status="interrupted", failure=Failure(what="interrupted", mend="run again", exit_code=130))
        raise
    except HarnessError as fault:
        update(status="failed", failure=Failure(what=fault.what, mend=fault.mend, exit_code=fault.exit_code))
        raise
    except Exception as fault:
        what, mend = f"{type(fault).__name__}: {fault}", "a fault of the harness itself: run with --debug and report it"
        update(status="failed", failure=Failure(what=what, mend=mend, exit_code=1))
        raise


def write_record(folder: Path, record: Record) -> None:
    """Replace a run's record.json atomically. Raises ConfigError when it can't be written; the old one then stays."""
    temporary = folder / f".{RECORD}.{os.getpid()}"
    try:
        with _explained(folder / RECORD):
            with temporary.open("wb") as file:
                file.write(record.model_dump_json(indent=2).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / RECORD)
    finally:
        temporary.unlink(missing_ok=True)


def find_run(parent: Path, name: str) -> Path:
    """A run by its folder, its id, or a part of its id that no other run has."""
    if len(name) < 250 and (Path(name) / RECORD).is_file():
        return Path(name)
    matches = [path for path in _run_folders(parent) if name in path.name]
    exact = [path for path in matches if path.name == name]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise ConfigError(
            f"{name!r} is part of {len(matches)} runs", f"give more of it: {', '.join(p.name for p in matches[:3])}"
        )
    raise ConfigError(f"no run {name!r} in {parent}", "see `harness runs list`")


def load_bench(folder: Path) -> RunRecord:
    """The record of a `harness bench`; ConfigError for another kind."""
    record = load_record(folder)
    if isinstance(record, RunRecord):
        return record
    raise ConfigError(f"{folder.name} is a record of {record.kind}, not of bench", "see `harness runs show` for it")


def load_record(folder: Path) -> Record:
    """A run's record, its status told as it is: a `running` run that nobody writes is `interrupted`."""
    path = folder / RECORD
    try:
        record = _RECORD.validate_json(path.read_bytes())
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", "see `harness runs list`") from None
    except ValidationError as fault:
        error = fault.errors()[0]
        place = ": ".join([str(path), *filter(None, [".".join(map(str, error["loc"]))])])
        raise ConfigError(f"{place}: {error['msg']}", "it is of another version, or damaged") from None
    if record.status == "running" and not _is_being_written(folder):
        return record.model_copy(update={"status": "interrupted"})
    return record


def load_events(folder: Path) -> list[Event]:
    """What a run measured. A last line without its end was cut off by a kill, and is left out."""
    path = folder / SAMPLES
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", "the run has no samples; nothing can be recomputed") from None
    return [_event(path, number, line) for number, line in enumerate(lines[:-1], 1)]


def _event(path: Path, number: int, line: bytes) -> Event:
    try:
        return EVENT.validate_json(line)
    except ValidationError as fault:
        raise ConfigError(f"{path}:{number}: {fault.errors()[0]['msg']}", "the line is damaged: take it out") from None


def append_event(folder: Path, event: Event) -> None:
    """One more line of a finished run's samples. ConfigError while another process writes them."""
    path = folder / SAMPLES
    with _explained(path), path.open("ab") as samples:
        try:
            fcntl.flock(samples, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder.name} is being written", "wait until that ends") from None
        samples.write(event.model_dump_json().encode() + b"\n")


def list_runs(parent: Path) -> Iterator[tuple[Path, Record | ConfigError]]:
    """Every run folder, oldest first; an unreadable one comes with its fault instead of hiding the others."""
    for folder in _run_folders(parent):
        try:
            yield folder, load_record(folder)
        except ConfigError as fault:
            yield folder, fault


def _run_folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("*-*") if (path / SAMPLES).exists()) if parent.is_dir() else []


def _is_being_written(folder: Path) -> bool:
    try:
        with (folder / SAMPLES).open("rb") as samples:
            fcntl.flock(samples, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _open(path: Path, mode: str) -> IO[bytes]:
    with _explained(path):
        return path.open(mode)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into one line what and one line how to mend."""
    try:
        yield
    except OSError as fault:
        raise ConfigError(
            f"{path}: {fault.strerror or fault}", "free some space, or give another place with --runs-dir"
        ) from None
