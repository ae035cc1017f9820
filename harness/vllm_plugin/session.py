"""What a process does for one model: its paths and counters, and the layers of each operation."""

from __future__ import annotations

import os

from harness.specs.plugin import PluginReport
from harness.specs.selection import SelectionTable
from harness.vllm_plugin.attentions import Attentions
from harness.vllm_plugin.deltas import Deltas
from harness.vllm_plugin.gpu_attentions import GpuAttentions
from harness.vllm_plugin.linears import Linears
from harness.vllm_plugin.machine import Machine
from harness.vllm_plugin.paths import Paths
from harness.vllm_plugin.settings import Settings
from harness.vllm_plugin.shared import write_report


class Session:
    """Opened by the model's first layer that a table could list."""

    def __init__(
        self, settings: Settings, tables: tuple[SelectionTable, ...], machine: Machine, notes: tuple[str, ...] = (),
        keeps_prefixes: bool = False, captures: bool = False,
    ) -> None:  # fmt: skip
        """keeps_prefixes: vLLM caches prefixes. captures: it replays graphs of its steps. ConfigError in a contest for
        a table with a backend that keeps weights in a layout of its own."""
        executor = machine.executor
        self.settings, self._executor, self._notes, self._captures = settings, executor, notes, captures
        self.paths = Paths(settings, tables, machine)
        self.linears = Linears(self.paths, self._write)
        self.attentions = Attentions(self.paths, executor, self._write, keeps_prefixes)
        self.gpu_attentions = GpuAttentions(self.paths, self._write)
        self.deltas = Deltas(self.paths, self._write)
        self._write()

    def report(self) -> PluginReport:
        """The counts of now."""
        self.paths.counts.collect()
        return self._report()

    def collect(self) -> None:
        """What others see of this process is that of now: its counters, and the scratch that kernels keep."""
        self.paths.counts.collect()
        self._write()

    def _report(self) -> PluginReport:
        """Without a look at the card, which would end the capture of a graph."""
        return PluginReport(
            pid=os.getpid(), tables=tuple(table.fingerprint for table in self.paths.tables),
            notes=(*self._notes, *self._unused()), paths=self.paths.rows(),
            kept_bytes=self.linears.kept_bytes + self.deltas.kept_bytes + self.gpu_attentions.kept_bytes,
            is_switchable=not self._captures,
        )  # fmt: skip

    def _unused(self) -> list[str]:
        """Operations that no layer of the model has taken on."""
        listed = {entry.op for table in self.paths.tables for entry in table.entries}
        return [f"no layer took what the selection lists of {op}" for op in sorted(listed - self.paths.ops())]

    def _write(self) -> None:
        if self.settings.report is not None:
            write_report(self.settings.report, self._report())

    def close(self) -> None:
        """Lets go of the model's weights."""
        self.linears.close()
        self.deltas.close()
        self._executor.close()
