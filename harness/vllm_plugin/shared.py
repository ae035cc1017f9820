"""Numbers that processes share through files: counters that the op increments, and the variant that it takes.

A counter lives in a mapped file, so it is exact at any moment, whoever asks and however the process ends.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from harness.config_io import replace_file
from harness.errors import ConfigError
from harness.specs.plugin import PluginReport

MAX_PATHS = 1 << 16
OFF = -1
_BYTES = 8


def shared_integers(path: Path | None, count: int) -> memoryview:
    """`count` int64, zeros where the file is new; without a path this process's own. ConfigError where it can't be."""
    if path is None:
        return memoryview(mmap.mmap(-1, count * _BYTES)).cast("q")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if os.fstat(file.fileno()).st_size < count * _BYTES:
                os.ftruncate(file.fileno(), count * _BYTES)
            return memoryview(mmap.mmap(file.fileno(), count * _BYTES)).cast("q")
    except OSError as fault:
        raise ConfigError(
            f"{path}: {fault.strerror}", "let HARNESS_PLUGIN_REPORT name a folder that can be written"
        ) from None


def active_file(folder: Path) -> Path:
    """One int64 in the machine's byte order: the active variant's place in HARNESS_SELECTION, or -1 for vLLM alone."""
    return folder / "active"


def switch(folder: Path, variant: int, num_variants: int) -> None:
    """Every process takes this variant from its next call on. Between requests: one in flight would change sides."""
    if not OFF <= variant < num_variants:
        raise ConfigError(f"there is no variant {variant}", f"choose from {OFF} (vLLM alone) to {num_variants - 1}")
    shared_integers(active_file(folder), 1)[0] = variant


def write_report(folder: Path, report: PluginReport) -> None:
    """The paths of this process; their counts follow in the file beside it."""
    replace_file(folder / f"{report.pid}.json", report.model_dump_json())


def new_counters(folder: Path | None, pid: int) -> memoryview:
    """Zeros, one for each path: those of an earlier model, or of an earlier process of this number, are gone."""
    if folder is None:
        return shared_integers(None, MAX_PATHS)
    _counters_file(folder, pid).unlink(missing_ok=True)
    return shared_integers(_counters_file(folder, pid), MAX_PATHS)


def _counters_file(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.counts"


def read_reports(folder: Path) -> list[PluginReport]:
    """Of every process that had layers of ours, with the counts of now."""
    reports = (PluginReport.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json")))
    return [_counted(report, folder) for report in reports]


def _counted(report: PluginReport, folder: Path) -> PluginReport:
    counts = struct.iter_unpack("q", _counters_file(folder, report.pid).read_bytes())
    paths = [path.model_copy(update={"num_calls": count}) for path, (count,) in zip(report.paths, counts, strict=False)]
    return report.model_copy(update={"paths": tuple(paths)})
