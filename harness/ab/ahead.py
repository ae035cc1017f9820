"""Triton's kernels for the problems of an A/B or of a selection table, compiled before anything launches them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.ab.shapes import Calls, Case, cases
from harness.absent_card import compiling_for
from harness.backends.base import Executor, Launch
from harness.backends.registry import REGISTRIES
from harness.errors import ConfigError
from harness.records import Say
from harness.specs.ab import AbConfig
from harness.specs.build import Build
from harness.specs.device import DeviceInfo
from harness.specs.model import ModelSpec
from harness.specs.problem import AttentionProblem, Parameters
from harness.specs.selection import SelectionTable
from harness.triton_builds import build_settings

if TYPE_CHECKING:
    from harness.ab.operands.arena import BlankArena
    from harness.ab.operands.base import Places


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
            if backend.compiles_at_launch and backend.supports(case.problem, device).ok:
                jobs.append(Job(case, backend, tuple(backend.tuning(case.problem, device)) or ({},)))
    return jobs, reasons


def jobs_of_table(table: SelectionTable) -> list[Job]:
    """Its choices, as far as they compile at a launch; ConfigError where it names a backend that is not known."""
    chosen = [(entry, REGISTRIES[entry.op].get(entry.backend)) for entry in table.entries]
    return [
        Job(Case(entry.op, entry.role, entry.problem, Calls(0, 0), entry.context), backend, (entry.parameters,))
        for entry, backend in chosen
        if backend.compiles_at_launch
    ]


def compile_jobs(jobs: Sequence[Job], dtype: str, target: str, device: DeviceInfo, tell: Say) -> Iterator[Build]:
    """The builds of each job, which stand by operation; UnavailableError where Triton can't compile for the target."""
    with compiling_for(target):  # or say at once that it can't
        from harness.ab.operands.arena import BlankArena

    for _, group in itertools.groupby(jobs, key=lambda job: job.case.op):
        alike = list(group)
        arena = BlankArena([job.case for job in alike], dtype, device)  # as an A/B's: its size decides types of AMD's
        for job in alike:
            tell(f"{target}: {job.backend.name} on {job.case.label}")
            name = f"{job.backend.name} {job.case.label}"
            bind = partial(_launches, job, arena.places(job.case), device)
            yield from build_settings(target, name, job.settings, bind)
            problem = job.case.problem
            if isinstance(problem, AttentionProblem) and job.backend.takes_requests:
                bind = partial(_launch_in_vllm, job.backend, problem, arena, device)
                yield from build_settings(target, f"{name} in vLLM's blocks", job.settings, bind)


def _launches(job: Job, places: Places, device: DeviceInfo, parameters: Parameters) -> tuple[Launch, ...]:
    return places.bind(job.backend, parameters, Executor(device)).launches


def _launch_in_vllm(
    backend: type[Any], problem: AttentionProblem, arena: BlankArena, device: DeviceInfo, parameters: Parameters
) -> tuple[Launch, ...]:
    """As the plugin binds it there; it compiles alike for any number of requests and of blocks."""
    return (backend(Executor(device), **parameters).bind_requests(*arena.requests(problem), problem),)
