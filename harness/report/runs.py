"""Runs as rows: the list, the comparison, and the figures derived again."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.bench import derived_figures
from harness.errors import ConfigError
from harness.records import Record, append_event, list_runs, load_bench, load_events, write_record
from harness.specs.ab import AbRecord
from harness.specs.base import flattened
from harness.specs.event import Event, TraceEvent
from harness.specs.record import RunRecord

_COMPARED = (
    "verdict", "cause", "util_frac", "util_interval_frac", "tpot_s", "ttft_s", "floor_s", "throughput_tokens_per_s",
    "roof_read_bytes_per_s", "achieved_bytes_per_s", "mfu_frac", "prefill_mfu_frac", "prefill_time_frac", "step_bytes",
)  # fmt: skip


def run_rows(parent: Path) -> list[dict[str, Any]]:
    """One row a run folder, oldest first; a record that can't be read says so in its row."""
    return [_row(folder, found) for folder, found in list_runs(parent)]


def _row(folder: Path, found: Record | ConfigError) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("run", "status", "verdict", "util_frac", "tpot_s", "note"))
    row["run"] = folder.name
    if isinstance(found, ConfigError):
        return row | {"status": "unreadable", "note": found.what}
    row |= {"status": found.status, "note": found.failure.what if found.failure else None}
    if isinstance(found, RunRecord) and found.analysis is not None:
        analysis = found.analysis
        row |= {"verdict": analysis.verdict, "util_frac": analysis.util_frac, "tpot_s": analysis.tpot_s}
    if isinstance(found, RunRecord) and found.sweep is not None:
        row["note"] = f"sweep over {len(found.sweep.points)} values of {found.sweep.over}"
    if isinstance(found, AbRecord):
        row["note"] = "; ".join(filter(None, (row["note"], found.unfinished))) or None
    return row


def comparison_rows(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One row a figure and one a differing key of configuration, device and surroundings; a column for each run."""
    if len(records) < 2:
        raise ConfigError("one run alone can't be compared", "name two or more (harness runs list)")
    figures = [_figures(record) for record in records]
    rows = [_across(records, key, [of.get(key) for of in figures]) for key in dict.fromkeys(chain(*figures))]
    flat = [
        flattened(record.model_dump(mode="json", include={"config", "device", "environment"})) for record in records
    ]
    keys = sorted({key for fields in flat for key in fields} - _ALWAYS_DIFFERENT)
    different = [key for key in keys if len({repr(fields.get(key)) for fields in flat}) > 1]
    return rows + [_across(records, key, [fields.get(key) for fields in flat]) for key in different]


def _figures(record: RunRecord) -> dict[str, Any]:
    """What is compared of a run; of a sweep each value's, and what all of them show together."""
    if record.sweep is None:
        analysis = record.analysis.model_dump(mode="json") if record.analysis else {}
        return {key: analysis.get(key) for key in _COMPARED}
    over, points = record.sweep.over, record.sweep.points
    rows = {
        f"{over} {point.value}: {key}": value
        for point in points
        for key, value in point.analysis.model_dump(mode="json", include=set(_COMPARED)).items()
    }
    return rows | flattened(
        record.sweep.model_dump(mode="json", include={"ttft_fit", "split", "knee"}, exclude_none=True)
    )


_ALWAYS_DIFFERENT = {"environment.utc", "environment.load_average", "environment.available_memory_bytes"}


def _across(records: Sequence[RunRecord], key: str, values: Sequence[Any]) -> dict[str, Any]:
    return {"figure": key} | {record.run_id: value for record, value in zip(records, values, strict=True)}


def recompute_run(folder: Path) -> RunRecord:
    """Derive a run's figures again from its samples, and replace them in its record."""
    record = load_bench(folder)
    if record.status == "running":
        raise ConfigError(f"{folder.name} is still being measured", "wait until it ends")
    record = _recomputed(folder, record, load_events(folder))
    write_record(folder, record)
    return record


def complete_run(folder: Path, found: TraceEvent) -> RunRecord:
    """A finished run with what a trace says: one more line of its samples, and its figures derived again."""
    record = _recomputed(folder, load_bench(folder), [*load_events(folder), found])
    append_event(folder, found)
    write_record(folder, record)
    return record


def _recomputed(folder: Path, record: RunRecord, events: Sequence[Event]) -> RunRecord:
    """The record with the figures of these events; ConfigError where they are not all there."""
    try:
        figures = derived_figures(record, events)
    except ValidationError as fault:
        error = fault.errors()[0]
        place = ".".join(map(str, error["loc"]))
        raise ConfigError(f"{folder.name}: {place}: {error['msg']}", "its samples are damaged") from None
    requests = figures["requests"]
    if len(requests) < len(record.requests):
        raise ConfigError(
            f"{folder.name}: {len(requests)} whole repeats in its samples, {len(record.requests)} in its record",
            "the samples lost some; the record is kept as it is",
        )
    return record.model_copy(update=figures)
