"""What the environment asks of the plugin: every process of a vLLM server inherits it."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError
from harness.selection import foreign, load_table
from harness.specs.device import DeviceInfo
from harness.specs.selection import SelectionTable

SELECTION, FORCE = "HARNESS_SELECTION", "HARNESS_SELECTION_FORCE"
CONTEST, REPORT = "HARNESS_CONTEST", "HARNESS_PLUGIN_REPORT"
CLAIMED = "HARNESS_PLUGIN_CLAIMED"
"""Set by the plugin itself for the processes that this one starts: the folder that is theirs."""


@dataclass(frozen=True)
class Settings:
    """The plugin's variables, read."""

    tables: tuple[Path, ...]
    """HARNESS_SELECTION, with os.pathsep between: variants that a run may switch between, the first at first."""
    force: bool = False
    """HARNESS_SELECTION_FORCE=1: also tables of another device, type, number of workers or software."""
    contest: bool = False
    """HARNESS_CONTEST=1: weights stay as loaded, and only backends that leave them so are allowed."""
    report: Path | None = None
    """HARNESS_PLUGIN_REPORT: a folder for every process's counters and the switch between variants."""

    def load(self) -> tuple[SelectionTable, ...]:
        """ConfigError for a file that is no table, or was changed."""
        return tuple(load_table(path) for path in self.tables)

    def check(
        self, tables: tuple[SelectionTable, ...], device: DeviceInfo, dtype: str, tensor_parallel: int = 1
    ) -> tuple[str, ...]:
        """A note on each table that was measured elsewhere and is forced; ConfigError for one that is not. dtype: the
        model's. tensor_parallel: workers that share every layer."""
        if self.contest and any(entry.op == "linear-attention" for table in tables for entry in table.entries):
            raise ConfigError(
                f"a contest's {SELECTION} lists the delta rule, some of whose weights vLLM packs, and none is hashed",
                f"name a table without linear-attention, or unset {CONTEST}",
            )
        notes, share = [], f" --tensor-parallel {tensor_parallel}" if tensor_parallel > 1 else ""
        if device.kind == "cpu":  # vLLM binds each worker to cores of its own: what it may use is not the machine's
            device = device.model_copy(update={"num_compute_units": None, "last_level_cache_bytes": None})
        for path, table in zip(self.tables, tables, strict=True):
            differences = foreign(table, device, dtype, tensor_parallel)
            if differences and not self.force:
                raise ConfigError(
                    f"{path} was measured elsewhere: {'; '.join(differences)}",
                    f"measure here with `harness ab linear{share} --save`, or set {FORCE}=1",
                )
            if differences:
                notes.append(f"{path} was forced, it is of {'; '.join(differences)}")
        return tuple(notes)


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings | None:
    """None where no selection is named; ConfigError for a switch that is neither 0 nor 1."""
    named = [Path(part) for part in environment.get(SELECTION, "").split(os.pathsep) if part]
    if not named:
        return None
    report = environment.get(REPORT)
    return Settings(
        tuple(named), _switch(environment, FORCE), _switch(environment, CONTEST), Path(report) if report else None
    )


def claim(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """In vLLM's first process; those that it starts find it done. ConfigError for a folder that an earlier run has left
    its counters in, which would be added up with ours, and its switch, which we would start at."""
    if environment.get(CLAIMED) == str(folder):
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} has what an earlier run counted", f"let {REPORT} name a new folder, or empty it")
    environment[CLAIMED] = str(folder)


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "0")
    if value not in ("0", "1"):
        raise ConfigError(f"{name} is {value!r}", "set it to 1, or leave it out")
    return value == "1"
