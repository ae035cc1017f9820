"""What a process does for one model: its paths and counters, and the layers of each operation."""

from __future__ import annotations

import os
from functools import cached_property
from weakref import ref

from harness import __version__
from harness.selection import software_versions
from harness.specs.ab import Op
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
        keeps_prefixes: bool = False, captures: bool = False, model: object | None = None,
    ) -> None:  # fmt: skip
        """keeps_prefixes: vLLM caches prefixes. captures: it replays graphs of its steps. model: what vLLM makes for
        this model alone; not kept alive. ConfigError in a contest for a table with a backend that keeps weights in a
        layout of its own."""
        executor = machine.executor
        self.settings, self._executor, self._notes, self._captures = settings, executor, notes, captures
        self._model = None if model is None else ref(model)
        self.paths = Paths(settings, tables, machine)
        self.linears = Linears(self.paths, self._write)
        self.attentions = Attentions(self.paths, executor, self._write, keeps_prefixes)
        self.gpu_attentions = GpuAttentions(self.paths, self._write)
        self.deltas = Deltas(self.paths, self._write)
        self._write()

    def is_of(self, settings: Settings, model: object) -> bool:
        """Another model of the same settings has other weights, and compiled code of its own."""
        return self.settings == settings and self._model is not None and self._model() is model

    @cached_property  # every layer asks
    def compile_key(self) -> list[str]:
        """Of all that decides what compiled code calls: this package, its kernels, the tables."""
        tables = (table.fingerprint for table in self.paths.tables)
        return [f"{__version__} {software_versions()['kernels']}", *tables]

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
            kept_bytes=self.linears.kept_bytes + self.deltas.kept_bytes + self.paths.scratch_bytes,
            ops=self._ops(), is_switchable=not self._captures,
        )  # fmt: skip

    def _ops(self) -> tuple[Op, ...]:
        """On a CPU attention's and the delta rule's layers may first be called by a request."""
        later = {"attention", "linear-attention"} if self._executor.device.kind == "cpu" else set()
        listed = {entry.op for table in self.paths.tables for entry in table.entries}
        return tuple(sorted(self.paths.ops | (listed & later)))

    def _unused(self) -> list[str]:
        """Operations that no layer of the model has taken on, and products that no table lists."""
        listed = {entry.op for table in self.paths.tables for entry in table.entries}
        roles = ", ".join(sorted(self.linears.unlisted)) if "linear" in listed else ""
        unlisted = [f"no shape in the selection fits {roles}: vLLM's own path runs there, uncounted"] * bool(roles)
        return unlisted + [f"no layer took what the selection lists of {op}" for op in sorted(listed - self.paths.ops)]

    def _write(self) -> None:
        if self.settings.report is not None:
            write_report(self.settings.report, self._report())

    def close(self) -> None:
        """Lets go of the model's weights."""
        self.linears.close()
        self.deltas.close()
        self._executor.close()
