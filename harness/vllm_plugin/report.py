"""What RAN, from the counters, in a record's words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from harness.specs.engine import OpChoice, layer_ranges
from harness.specs.plugin import NOT_LISTED, STOCK, PluginPath, PluginReport
from harness.vllm_plugin.shared import OFF

_LAYER = re.compile(r"\.layers?\.(\d+)\.")


def counted_since(before: PluginReport | None, now: PluginReport) -> PluginReport:
    """Calls between two reports of one process; its paths only become more. None: of all its life."""
    earlier = () if before is None else before.paths
    paths = [
        path.model_copy(update={"num_calls": path.num_calls - earlier[place].num_calls})
        for place, path in enumerate(now.paths[: len(earlier)])
    ]
    return now.model_copy(update={"paths": (*paths, *now.paths[len(earlier) :])})


def of_variant(reports: Sequence[PluginReport], variant: int) -> list[PluginReport]:
    """One table's part of them, or of -1 that of vLLM alone."""
    return [
        report.model_copy(
            update={
                "tables": report.tables[variant : variant + 1] if variant != OFF else (),
                "paths": tuple(path for path in report.paths if path.variant == variant),
            }
        )
        for report in reports
    ]


def counted_steps(reports: Sequence[PluginReport]) -> int:
    """Decode steps that every layer of one variant counted on what the variant is: the table's backend where it lists
    one row, or vLLM's own path where it was switched to that; none where a listed row fell back. The fewest of all
    layers and processes; a prompt's last row counts as one more, in the head."""
    if fallen_back(reports):
        return 0
    asked = [path for report in reports for path in report.paths if path.m == 1 and path.reason is None]
    return min((path.num_calls for path in asked), default=0)


def selected_steps(reports: Sequence[PluginReport]) -> int:
    """Decode steps that every layer counted on a backend of the table, at the number of rows that was called most: the
    fewest of all layers and processes that take such a row from it. What the table lists and can't run counts none."""
    calls: dict[int, list[int]] = defaultdict(list)
    for path in (path for report in reports for path in report.paths):
        if path.m is not None and path.variant != OFF and path.reason != NOT_LISTED:
            calls[path.m].append(0 if path.backend == STOCK else path.num_calls)
    return max(map(min, calls.values()), default=0)


def fallen_back(reports: Sequence[PluginReport]) -> dict[str, str]:
    """Why vLLM's own path ran decode steps of what the table lists, by role: there nothing was compared."""
    return {
        path.role: path.reason
        for report in reports
        for path in report.paths
        if path.m == 1 and path.backend == STOCK and path.num_calls and path.reason and path.reason != NOT_LISTED
    }


def op_choices(reports: Sequence[PluginReport]) -> tuple[OpChoice, ...]:
    """One row a role, shape and path that was taken at least once, with its layers; each worker's own share of a layer
    is one call. More rows than a table lists are called a prompt's; a short chunk of a prompt counts among the decode
    steps of as many rows."""
    names: dict[OpChoice, set[str]] = defaultdict(set)
    for report in reports:
        for path in report.paths:
            if path.num_calls:
                names[_choice(path, len(report.tables))].add(path.layer)
    return tuple(
        choice.model_copy(update={"layers": layer_ranges(set(map(_layer, found))), "num_calls": len(found)})
        for choice, found in names.items()
    )


def summary(reports: Sequence[PluginReport]) -> dict[str, str | int | float | bool | None]:
    """Tables, calls by backend as all processes counted them, and what the selection costs in memory."""
    calls: Counter[str] = Counter()
    for report in reports:
        for path in report.paths:
            calls[path.backend] += path.num_calls
    tables = {report.tables: None for report in reports}
    return {
        "selection": ", ".join(fingerprint[:16] for table in tables for fingerprint in table) or "off",
        "selection_calls": ", ".join(f"{backend} x{count}" for backend, count in sorted(calls.items()) if count),
        "selection_kept_bytes": sum(report.kept_bytes for report in reports),
    }


def _layer(name: str) -> int:
    """-1 outside the layers."""
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def _choice(path: PluginPath, num_tables: int) -> OpChoice:
    return OpChoice(
        op=path.op, role=path.role, shape=path.shape, backend=path.backend,
        parameters=tuple(path.parameters.items()), contest_legal=path.contest_legal, layers="",
        phase="prefill" if path.m is None else "decode", batch=path.m or 1, read_bytes=path.read_bytes,
        note=f"variant {path.variant}" if num_tables > 1 else "", selected=path.backend != STOCK,
        fallback_from="selection" if path.reason else None, fallback_reason=path.reason,
    )  # fmt: skip
