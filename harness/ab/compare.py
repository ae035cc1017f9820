"""`harness ab linear|attention|linear-attention`: every backend on each problem of a model, interleaved and checked.

The order is the method: a backend is checked on fresh inputs before it is timed and once more afterwards; samples
stand in turning order, with a reading of the probe before each block and after the last; rounds end when ratios are as
precise as wanted; and a winner is measured once more on fresh operands before anybody is told what it is worth.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from harness.ab.judge import confirmation, judge_shape
from harness.ab.ledger import Ledger
from harness.ab.race import Race, Timing
from harness.ab.sampler import Sampler
from harness.ab.shapes import Case, cases, left_out
from harness.ab.side import Side, open_side
from harness.backends.base import OwnExecutor
from harness.backends.registry import REGISTRIES
from harness.devices.cpu import physical_cores
from harness.environment import read_environment
from harness.errors import ConfigError, UnavailableError
from harness.exclusive import measuring
from harness.models import resolve_model
from harness.probe.base import Probe
from harness.records import RunFolder, Say, end_recorded, silent, teller
from harness.selection import find_mergeable, save_entries, table_path
from harness.specs.ab import AbConfig, AbRecord, AbRow, Pass
from harness.specs.device import DeviceInfo
from harness.specs.model import ModelSpec
from harness.specs.problem import Parameters
from harness.specs.run import ProbeConfig
from harness.specs.selection import entries_of

if TYPE_CHECKING:
    from harness.ab.operands.arena import Arena
    from harness.ab.operands.base import Operands

READING_S = 0.1
SURVEY_S = 3.0
CONFIRM_SEED = 1_000_003
"""Fresh operands are of another seed than those of the comparison."""


def run_ab(
    config: AbConfig, runs_parent: Path, tell: Say, saves: bool = False, finished: Say = silent
) -> tuple[Path, AbRecord]:
    """Measure, and leave a record. Raises ConfigError for unknown names and for a model that has no such operation.

    saves: the winners are to be kept, so a table that they can't stand in is refused before anything is measured.
    finished: hears of each problem that is done, tell of each that begins.
    """
    model = resolve_model(config.model)
    wanted = cases(model.spec, config)
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError(f"ab {config.op} needs torch", "pip install torch, as `make install` does")
    for name in {*config.backends, config.compared_to}:
        REGISTRIES[config.op].get(name)
    from harness.engines.native.machine import open_executor, torch_device

    on = torch_device(config.device)
    if on.type == "cpu" and config.tensor_parallel > 1 and config.threads is None:
        config = config.model_copy(update={"threads": max(1, len(physical_cores()) // config.tensor_parallel)})
    with contextlib.closing(open_executor(on, config.threads)) as executor:
        if saves:
            dtype, workers = model.spec.dtype, config.tensor_parallel
            path = table_path(executor.device, config.model, dtype, workers)
            find_mergeable(path, config.model, executor.device, dtype, workers)
            _refuse_unwritable(path)
        _refuse_unfit_baseline(config, wanted, executor.device)
        where, name = executor.device.arch or executor.device.kind, f"ab-{config.op}"
        with RunFolder.create(runs_parent, where, name) as folder:
            ledger = Ledger(folder, _new_record(folder.run_id, config, model.spec, executor, len(wanted)))
            say = teller(folder, tell)
            with end_recorded(ledger.update), measuring(say):
                _measure(ledger, wanted, executor, folder, say, finished)
            return folder.path, ledger.record


def _refuse_unwritable(path: Path) -> None:
    """ConfigError where a file could not be put there. Tried, since permissions do not tell it: root passes them, and a
    medium may be read-only. Nothing is left."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as fault:
        mend = "make the folder writable, or compare without --save"
        raise ConfigError(f"{path}: {folder}: {fault.strerror}", mend) from None


def _refuse_unfit_baseline(config: AbConfig, wanted: list[Case], device: DeviceInfo) -> None:
    """ConfigError for a baseline that has none of the problems here: nothing could be compared to it."""
    backend = REGISTRIES[config.op].get(config.compared_to)
    supports = [backend.supports(case.problem, device) for case in wanted]
    if not any(support.ok for support in supports):
        why = "; ".join(dict.fromkeys(support.why for support in supports))
        raise ConfigError(f"the baseline {config.compared_to} has none of these problems: {why}", "take another")


def _new_record(
    run_id: str, config: AbConfig, spec: ModelSpec, executor: OwnExecutor, num_problems: int
) -> AbRecord:  # fmt: skip
    return AbRecord.model_validate(
        {
            "kind": f"ab-{config.op}", "run_id": run_id, "status": "running", "config": config, "dtype": spec.dtype,
            "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "environment": read_environment(), "device": executor.device,
            "left_out": left_out(spec, config), "num_problems": num_problems,
        }
    )  # fmt: skip


def _measure(
    ledger: Ledger, wanted: list[Case], executor: OwnExecutor, folder: RunFolder, say: Say, finished: Say
) -> None:  # fmt: skip
    """Every problem, and then every winner once more."""
    from harness.ab.operands.arena import Arena
    from harness.engines.native.machine import open_probe, torch_device

    config = ledger.record.config
    on = torch_device(config.device)
    arena = Arena(wanted, ledger.record.dtype, executor.device, on, config.seed)
    probe = open_probe(ProbeConfig(reading_s=READING_S, survey_s=SURVEY_S), executor, say)
    with contextlib.closing(probe) if probe is not None else contextlib.nullcontext():
        if probe is not None:
            say("probe: looking for the fastest verified reader")
        report = None if probe is None else probe.survey(None)
        comparison = Comparison(config, arena, executor, probe, folder)
        ledger.begin(probe=report, rotation_bytes=arena.num_bytes)
        rows: list[AbRow] = []
        for number, case in enumerate(wanted, 1):
            say(f"{case.role}: {case.label}")
            rows += comparison.rows(case)
            ledger.enter(rows)
            finished(f"{number} of {len(wanted)} problems done: {case.role}: {case.label}")
        by_label = {case.label: case for case in wanted}
        for index, row in enumerate(rows):
            if row.outcome == "winner" and row.backend != config.compared_to:
                say(f"once more, on fresh operands: {row.label} on {row.shape}")
                rows[index] = comparison.confirmed(by_label[row.shape], row)
                ledger.enter(rows)
                finished(f"measured once more: {row.label} on {row.shape}")
    ledger.enter(rows, status="done")


def save_winners(record: AbRecord) -> Path:
    """Into the model's table for this device; ConfigError where the table there is of other software, and where nothing
    was timed."""
    entries = entries_of(record.rows, record.run_id, record.config.compared_to)
    if not entries:
        raise ConfigError("no backend could be timed, so there is no winner to keep", "see the rows for the reasons")
    model, workers = record.config.model, record.config.tensor_parallel
    path = table_path(record.device, model, record.dtype, workers)
    save_entries(path, entries, model, record.dtype, record.device, workers)
    return path


class Comparison:
    """What the cases of a comparison share: memory, device, probe and the folder that samples go to."""

    def __init__(
        self, config: AbConfig, arena: Arena, executor: OwnExecutor, probe: Probe | None, folder: RunFolder
    ) -> None:  # fmt: skip
        self._config, self._arena, self._executor, self._probe = config, arena, executor, probe
        self._sampler = Sampler(executor)
        self._race = Race(config, self._sampler, probe, folder, arena.outlasts_caches)
        self._backends = REGISTRIES[config.op]

    def rows(self, case: Case) -> list[AbRow]:
        """One a backend: checked, tuned where it has something to tune, and timed beside the others."""
        operands, sides = self._open(case, self._settings(case), self._config.seed)
        peak = self._peak(case)
        timing, rows = self._raced(case, operands, sides, "compare")
        peaks = [found for found in (peak, self._peak(case)) if found is not None]
        mean_peak = sum(peaks) / len(peaks) if peaks else None
        baseline, precision = self._baseline(rows), self._config.precision
        return judge_shape(rows, timing.call_s, timing.probe_rates, baseline, precision, mean_peak)

    def confirmed(self, case: Case, row: AbRow) -> AbRow:
        """The winner's row with its fresh measurement beside the baseline, or why there is none; the row of one that is
        refused now, if it does not last this time."""
        settings = [(self._config.compared_to, {}), (row.backend, row.parameters)]
        operands, sides = self._open(case, settings, self._config.seed + CONFIRM_SEED)
        timing, (baseline, winner) = self._raced(case, operands, sides, "confirm")
        if winner.status != "ok":
            return winner.model_copy(update={"why": f"measured once more: {winner.why}"})
        if baseline.status != "ok":
            why = f"not measured once more beside {baseline.backend}: {baseline.status}: {baseline.why}"
            return row.model_copy(update={"why": why})
        found = confirmation(timing.call_s[winner.label], timing.call_s[baseline.label], self._config.precision)
        return row.model_copy(update={"confirmed": found})

    def _raced(
        self, case: Case, operands: Operands, sides: list[Side], within: Pass
    ) -> tuple[Timing, list[AbRow]]:  # fmt: skip
        """(samples of those that can be timed, every side's row as it is after them)."""
        timing = self._race.run(case, operands, [side for side in sides if side.launches], within)
        if any(row.status == "changes-operands" for row in timing.refused.values()):
            self._arena.refill()
        return timing, [timing.refused.get(side.row.label, side.row) for side in sides]

    def _baseline(self, rows: list[AbRow]) -> str:
        return next(row.label for row in rows if row.backend == self._config.compared_to)

    def _peak(self, case: Case) -> float | None:
        """FLOP per second of matrix products now, for a problem that is bound by them."""
        if self._probe is None or case.problem.m < 2:
            return None
        reading = self._probe.read_peak(case.problem.dtype)
        return None if reading is None else reading.flop_per_s

    def _settings(self, case: Case) -> list[tuple[str, Parameters]]:
        """Every wanted backend and the baseline, each with the parameters that a short trial finds the fastest."""
        wanted = self._config.backends or tuple(self._backends.all())
        return [(name, self._tuned(case, name)) for name in dict.fromkeys((*wanted, self._config.compared_to))]

    def _tuned(self, case: Case, name: str) -> Parameters:
        """Of the settings that a backend lists for this problem; chosen only: the comparison measures it again."""
        backend = self._backends.get(name)
        space = backend.tuning(case.problem, self._executor.device)
        if not space or not backend.supports(case.problem, self._executor.device).ok:
            return {}
        operands, sides = self._open(case, [(name, setting) for setting in space], self._config.seed)
        best = self._race.try_out(case, operands, [side for side in sides if side.launches])
        return next((side.row.parameters for side in sides if side.row.label == best), {})

    def _open(
        self, case: Case, settings: list[tuple[str, Parameters]], seed: int
    ) -> tuple[Operands, list[Side]]:  # fmt: skip
        """Sides on fresh operands. Who changes the operands is out, and all start again on whole ones."""
        guilty: dict[str, Side] = {}
        while True:
            operands = self._arena.operands(case, seed)
            sides: list[Side] = []
            for name, parameters in settings:
                key = f"{name} {parameters}"
                side = guilty.get(key) or open_side(
                    case, self._backends.get(name), parameters, operands, self._executor, self._sampler
                )
                sides.append(side)
                if side.row.status == "changes-operands" and key not in guilty:
                    guilty[key] = side
                    self._arena.refill()
                    break
            else:
                return operands, sides
