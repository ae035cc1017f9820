"""What a process does for one model: its paths and counters, and the layers of each operation."""

from __future__ import annotations

import os

from harness.backends.base import Executor
from harness.specs.plugin import PluginReport
from harness.specs.selection import SelectionTable
from harness.vllm_plugin.attentions import Attentions
from harness.vllm_plugin.deltas import Deltas
from harness.vllm_plugin.linears import Linears
from harness.vllm_plugin.paths import Paths
from harness.vllm_plugin.settings import Settings
from harness.vllm_plugin.shared import write_report


class Session:
    """Opened by the model's first layer that a table could list."""

    def __init__(
        self, settings: Settings, tables: tuple[SelectionTable, ...], executor: Executor, notes: tuple[str, ...] = (),
        keeps_prefixes: bool = False,
    ) -> None:  # fmt: skip
        """keeps_prefixes: vLLM caches prefixes. ConfigError in a contest for a table with a backend that keeps weights
        in a layout of its own."""
        self.settings, self._executor, self._notes = settings, executor, notes
        self.paths = Paths(settings, tables, executor)
        self.linears = Linears(self.paths, self._write)
        self.attentions = Attentions(self.paths, executor, self._write, keeps_prefixes)
        self.deltas = Deltas(self.paths, self._write)
        self._write()

    def report(self) -> PluginReport:
        """The counts of now."""
        return PluginReport(
            pid=os.getpid(), tables=tuple(table.fingerprint for table in self.paths.tables), notes=self._notes,
            kept_bytes=self.linears.kept_bytes + self.deltas.kept_bytes, paths=self.paths.rows(),
        )  # fmt: skip

    def _write(self) -> None:
        if self.settings.report is not None:
            write_report(self.settings.report, self.report())

    def close(self) -> None:
        """Lets go of the model's weights."""
        self.linears.close()
        self.deltas.close()
        self._executor.close()
