"""Triton's kernels for the problems of an A/B or of a selection table, compiled before anything launches them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ab.shapes import Calls, Case, cases
from harness.absent_card import compiling_for
from harness.backends.base import Executor
from harness.backends.registry import REGISTRIES
from harness.errors import ConfigError
from harness.records import Say
from harness.specs.ab import AbConfig
from harness.specs.build import Build
from harness.specs.device import DeviceInfo
from harness.specs.model import ModelSpec
from harness.specs.problem import Parameters
from harness.specs.selection import SelectionTable

if TYPE_CHECKING:
    from harness.ab.operands.base import Places

MAX_WHY = 200


@dataclass(frozen=True)
class Job:
    """One backend on one problem, in each of these settings."""

    case: Case
    backend: type[Any]
    settings: tuple[Parameters, ...]


def jobs_of_model(name: str, spec: ModelSpec, device: DeviceInfo) -> tuple[list[Job], list[str]]:
    """(What `harness ab` would launch for a model when it is told no batches, contexts or chunks, in every setting;
    why operations have no problems)."""
    jobs, reasons = [], []
    for op, registry in REGISTRIES.items():
        try:
            posed = cases(spec, AbConfig(op=op, model=name))
        except ConfigError as none:
            reasons.append(none.what)
            continue
        for case, backend in itertools.product(posed, registry.all().values()):
            if _compiles_at_launch(backend) and backend.supports(case.problem, device).ok:
                jobs.append(Job(case, backend, tuple(backend.tuning(case.problem, device)) or ({},)))
    return jobs, reasons


def jobs_of_table(table: SelectionTable) -> list[Job]:
    """Its choices, as far as they compile at a launch; ConfigError where it names a backend that is not known."""
    chosen = [(entry, REGISTRIES[entry.op].get(entry.backend)) for entry in table.entries]
    return [
        Job(Case(entry.op, entry.role, entry.problem, Calls(0, 0), entry.context), backend, (entry.parameters,))
        for entry, backend in chosen
        if _compiles_at_launch(backend)
    ]


def compile_jobs(jobs: Sequence[Job], dtype: str, target: str, device: DeviceInfo, tell: Say) -> Iterator[Build]:
    """One build a job, which stand by operation; UnavailableError where Triton can't compile for the target at all."""
    with compiling_for(target):  # or say at once that it can't
        from harness.ab.operands.arena import BlankArena

    for _, group in itertools.groupby(jobs, key=lambda job: job.case.op):
        alike = list(group)
        arena = BlankArena([job.case for job in alike], dtype, device)  # as an A/B's: its size decides types of AMD's
        for job in alike:
            tell(f"{target}: {job.backend.name} on {job.case.label}")
            yield _compile(job, arena.places(job.case), target, device)


def _compile(job: Job, places: Places, target: str, device: DeviceInfo) -> Build:
    started, faults = time.perf_counter(), []
    with compiling_for(target) as found:
        for parameters in job.settings:
            try:
                for launch in places.bind(job.backend, parameters, Executor(device)).launches:
                    launch()
            except Exception as error:  # noqa: BLE001 - a compiler may raise anything; other settings go on
                reason = " ".join(str(error).split())[-MAX_WHY:]  # Triton quotes the source first
                faults.append(f"{parameters or 'usual'}: {type(error).__name__}: {reason}")
    why = f"{len(faults)} of {len(job.settings)} settings, {faults[0]}" if faults else None
    return Build(
        target=target,
        what="triton",
        kernel=f"{job.backend.name} {job.case.label}",
        outcome="failed" if faults else "built" if any(each.is_new for each in found) else "cached",
        why=why,
        time_s=time.perf_counter() - started,
        num_bytes=sum(each.num_bytes for each in found) if found else None,
    )


def _compiles_at_launch(backend: type[Any]) -> bool:
    return getattr(backend, "compiles_at_launch", False)
