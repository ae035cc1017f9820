"""A vLLM with the plugin in it, seen from outside its processes: which selection is taken, and what was counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from harness.errors import ConfigError, MeasurementError
from harness.specs.engine import EngineReport
from harness.specs.plugin import PluginReport
from harness.vllm_plugin.audit import unchanged
from harness.vllm_plugin.report import (
    counted_since,
    counted_steps,
    fallen_back,
    of_variant,
    op_choices,
    selected_steps,
    summary,
)
from harness.vllm_plugin.shared import read_reports, switch

GRAPHS_KEEP = "captured graphs keep the selection that was active when they were captured"
COMPARE_WITHOUT = "compare with engine.graph: compiled (or eager) in both, or run `harness bench` once with each"


class Variant:
    """What one engine's requests take. Several engines may share a vLLM, each with a variant of its own."""

    def __init__(
        self, folder: Path, collect: Callable[[], object] | None = None, place: int | None = None, num_tables: int = 1
    ) -> None:
        """Of a vLLM that is ready: what it ran to get there (warm-up, capture) counts for nobody.

        folder: the plugin's (HARNESS_PLUGIN_REPORT). collect: has every worker write there what its card counted;
        None: there are none. place: in HARNESS_SELECTION, or -1 for vLLM alone; None: it stays at the first, and all
        that was counted is this engine's. ConfigError where graphs keep the variant that they were captured with.
        """
        self._folder, self._collect, self._place, self._num_tables = folder, collect, place, num_tables
        self._at_start = {report.pid: report for report in self._reports()}
        self._parameters: dict[str, str] = {}
        self._answered_steps = 0
        if place is not None and not all(report.is_switchable for report in self._at_start.values()):
            raise ConfigError(GRAPHS_KEEP, COMPARE_WITHOUT)

    def take(self) -> None:
        """Between requests: the next one runs on it."""
        if self._place is not None:
            switch(self._folder, self._place, self._num_tables)

    def answered(self, num_steps: int) -> None:
        """So many decode steps brought an answer: what the counters are held against."""
        self._answered_steps += num_steps

    def _reports(self) -> list[PluginReport]:
        if self._collect is not None:
            self._collect()
        return read_reports(self._folder)

    def reports(self) -> list[PluginReport]:
        """Of every process with layers of ours, this variant's part of each."""
        reports = [counted_since(self._at_start.get(now.pid), now) for now in self._reports()]
        return reports if self._place is None else of_variant(reports, self._place)

    def close(self) -> None:
        """Lets go of the vLLM that it asks."""
        self._collect = None

    def audit(self, workers: Iterable[Mapping[str, Sequence[str]]]) -> None:
        """Keeps for the report that no parameter has changed. MeasurementError for one that has."""
        self._parameters = {"selection_parameters": unchanged(workers)}

    def completed(self, report: EngineReport) -> EngineReport:
        """With what ran; as it is where no selection is. MeasurementError in a comparison where vLLM's own path ran
        what the table lists: it would be vLLM beside itself."""
        reports = self.reports()
        fallen = {} if self._place is None else fallen_back(reports)
        if fallen:
            why = "; ".join(f"{role}: {reason}" for role, reason in sorted(fallen.items()))
            raise MeasurementError(
                f"vLLM's own path ran what the selection lists of {why}", "take these out of the table, or mend them"
            )
        if not reports:
            return report
        notes = dict.fromkeys(note for found in reports for note in found.notes)
        return report.model_copy(update={
            "ops": op_choices(reports), "resolved": report.resolved | summary(reports) | self._parameters,
            "counted_steps": selected_steps(reports) if self._place is None else counted_steps(reports),
            "answered_steps": self._answered_steps,
            "notes": (*report.notes, *notes),
        })  # fmt: skip
