"""What RAN, from the counters, in a record's words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from harness.specs.engine import OpChoice, layer_ranges
from harness.specs.plugin import PluginPath, PluginReport

_LAYER = re.compile(r"\.layers?\.(\d+)\.")


def op_choices(report: PluginReport) -> tuple[OpChoice, ...]:
    """One row a role, shape and path that was taken at least once, with its layers. More rows than a table lists are
    called a prompt's; a short chunk of a prompt counts among the decode steps of as many rows."""
    layers: dict[OpChoice, list[int]] = defaultdict(list)
    for path in report.paths:
        if path.num_calls:
            found = _LAYER.search(path.layer)
            layers[_choice(path, len(report.tables))].append(int(found[1]) if found else -1)
    return tuple(
        choice.model_copy(update={"layers": layer_ranges(set(numbers)), "num_calls": len(numbers)})
        for choice, numbers in layers.items()
    )


def summary(report: PluginReport) -> dict[str, str | int | float | bool | None]:
    """Tables, counted calls by backend, and what the selection costs in memory."""
    calls: Counter[str] = Counter()
    for path in report.paths:
        calls[path.backend] += path.num_calls
    return {
        "selection": ", ".join(fingerprint[:16] for fingerprint in report.tables),
        "selection_calls": ", ".join(f"{backend} x{count}" for backend, count in sorted(calls.items()) if count),
        "selection_kept_bytes": report.kept_bytes,
    }


def _choice(path: PluginPath, num_tables: int) -> OpChoice:
    rows = "m" if path.m is None else path.m
    return OpChoice(
        op="linear", role=path.role, shape=f"{rows}x{path.n}x{path.k}", backend=path.backend,
        parameters=tuple(path.parameters.items()), contest_legal=path.contest_legal, layers="",
        phase="prefill" if path.m is None else "decode", batch=path.m or 1, read_bytes=path.read_bytes,
        note=f"variant {path.variant}" if num_tables > 1 else "", selected=path.read_bytes is not None,
        fallback_from="selection" if path.reason else None, fallback_reason=path.reason,
    )  # fmt: skip
