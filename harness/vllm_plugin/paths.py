"""What the calls of a process can run, how often each of these ran, and which variant is active: of every operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.backends.registry import REGISTRIES
from harness.errors import ConfigError, UnavailableError
from harness.specs.ab import Op
from harness.specs.plugin import NOT_LISTED, PluginPath
from harness.specs.selection import Problem, SelectionEntry, SelectionTable
from harness.vllm_plugin.settings import CONTEST, Settings
from harness.vllm_plugin.shared import MAX_PATHS, OFF, active_file, shared_integers

if TYPE_CHECKING:
    from harness.vllm_plugin.machine import Machine


class Paths:
    """One a layer, variant and number of rows; whoever takes it adds one to `counts` at its place."""

    def __init__(self, settings: Settings, tables: tuple[SelectionTable, ...], machine: Machine) -> None:
        """ConfigError in a contest for a table with a backend that keeps weights in a layout of its own."""
        self.tables, self._executor, self.counts = tables, machine.executor, machine.counts
        if settings.contest:
            self._check_legal()
        self._active = shared_integers(active_file(settings.report) if settings.report else None, 1)
        self._rows: list[PluginPath] = []
        self.ops: set[Op] = set()
        """That some layer has taken on."""
        self._backends: dict[tuple[Any, ...], Any] = {}

    def _check_legal(self) -> None:
        used = {(entry.op, entry.backend) for table in self.tables for entry in table.entries}
        illegal = sorted(name for op, name in used if not REGISTRIES[op].get(name).contest_legal)
        if illegal:
            raise ConfigError(
                f"{CONTEST}=1, and the selection has {', '.join(illegal)}, which keeps weights in its own layout",
                "select among those that `harness backends` marks as contest-legal",
            )

    @property
    def variant(self) -> int:
        """The active table's place, or OFF."""
        return self._active[0]

    def switch(self, variant: int) -> None:
        """`shared.switch` for this process, where no folder is named."""
        self._active[0] = variant

    def lists(self, op: Op, problem: Problem) -> bool:
        """Whether any table does."""
        return any(table.find(op, problem) for table in self.tables)

    def chosen(self, op: Op, variant: int, problem: Problem) -> tuple[SelectionEntry, Any] | str | None:
        """(entry, backend) that a variant has for a problem, or why vLLM's own path runs: None where all is off."""
        if not OFF <= variant < len(self.tables):
            raise ConfigError(f"there is no variant {variant}", f"HARNESS_SELECTION names {len(self.tables)} tables")
        if variant == OFF:
            return None
        entry = self.tables[variant].find(op, problem)
        if entry is None:
            return NOT_LISTED
        support = REGISTRIES[op].get(entry.backend).supports(problem, self._executor.device)
        return (entry, self._backend(entry)) if support.ok else f"{entry.backend}: {support.why} ({support.mend})"

    def _backend(self, entry: SelectionEntry) -> Any:
        key = (entry.op, entry.backend, *entry.parameters.items())
        if key not in self._backends:
            self._backends[key] = REGISTRIES[entry.op].get(entry.backend)(self._executor, **entry.parameters)
        return self._backends[key]

    @property
    def scratch_bytes(self) -> int:
        """Of all backends that were made."""
        made = (getattr(backend, "scratch", None) for backend in self._backends.values())
        return sum(scratch.num_bytes for scratch in made if scratch is not None)

    def add(self, row: PluginPath) -> int:
        """Its place in `counts`."""
        if len(self._rows) == MAX_PATHS:
            raise UnavailableError(f"more than {MAX_PATHS} paths", "name fewer tables in HARNESS_SELECTION")
        self._rows.append(row)
        self.ops.add(row.op)
        return len(self._rows) - 1

    def retire(self, place: int, reason: str) -> None:
        """Nothing will come this way."""
        self._rows[place] = self._rows[place].model_copy(update={"reason": reason})

    def rows(self) -> tuple[PluginPath, ...]:
        """With the counts of now, or on a card of `counts.collect`."""
        return tuple(
            row.model_copy(update={"num_calls": self.counts.of(place)}) for place, row in enumerate(self._rows)
        )
