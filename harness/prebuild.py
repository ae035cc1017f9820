"""`harness backends --build`: what first uses would compile, compiled ahead of them, under the names they look for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.ab.ahead import Job, compile_jobs, jobs_of_model, jobs_of_table
from harness.backends.base import Executor
from harness.backends.registry import check_table
from harness.backends.triton import declared
from harness.devices.gpu import DCU_ARCHS, gpus_here
from harness.errors import ConfigError, UnavailableError
from harness.gpu_build import HOST, build_gpu_kernel, compile_command, platform_of, wave_widths
from harness.kernel_build import Library, build_kernel, find_compiler
from harness.models import ResolvedModel, resolve_model
from harness.probe.triton_probe import OP, probe_launches
from harness.records import Say
from harness.resources import kernels_dir
from harness.selection import load_table
from harness.specs.build import Build
from harness.specs.device import DeviceInfo
from harness.triton_builds import build_settings

CPU = "cpu"
TRITON = "all"
"""How a row names Triton's kernels where there is none for each problem."""


@dataclass(frozen=True)
class Asked:
    """What Triton's kernels are to be compiled for on a device."""

    dtype: str
    jobs: list[Job]
    reasons: list[str] = field(default_factory=list)
    """Why operations have no jobs."""
    model: ResolvedModel | None = None
    """Whose steps are to be compiled for as well."""


Ask = Callable[[DeviceInfo], Asked]


def prebuild(targets: Sequence[str], model: str | None, table: Path | None, tell: Say) -> Iterator[Build]:
    """One build a library or problem, as they are made; no targets: this machine's devices.

    Raises ConfigError for a target of no known kind, a model or a table that can't be had, before it builds anything.
    """
    _check(targets)
    ask = _asked(model, table)
    cards = {} if targets and {*targets} <= {CPU, HOST} else gpus_here()
    return _builds(tuple(dict.fromkeys(targets)) or (CPU, *cards), cards, ask, tell)


def _builds(targets: Sequence[str], cards: dict[str, DeviceInfo], ask: Ask | None, tell: Say) -> Iterator[Build]:
    for target in targets:
        yield from _libraries(target, tell)
        if target not in (CPU, HOST):
            yield from _triton_kernels(target, cards.get(target.partition(":")[0]) or _card(target), ask, tell)


def _check(targets: Sequence[str]) -> None:
    for target in targets:
        try:
            if target != CPU:
                platform_of(target)
        except UnavailableError as fault:
            known = f"name {CPU}, {HOST} or an architecture such as sm_90 or gfx90a"
            raise ConfigError(f"--target: {fault.what}", known) from None


def _asked(model: str | None, table: Path | None) -> Ask | None:
    if model is not None and table is not None:
        raise ConfigError("--model asks for every setting, --selection for those of a table", "give one of them")
    if model is not None:
        found = resolve_model(model)
        dtype = found.spec.dtype
        return lambda device: Asked(dtype, *jobs_of_model(found.name, found.spec, device), found)
    if table is not None:
        chosen = load_table(table)
        check_table(chosen, table)
        jobs = jobs_of_table(chosen)
        return lambda device: Asked(chosen.dtype, jobs)
    return None


def _libraries(target: str, tell: Say) -> Iterator[Build]:
    """Of every source for this target; all are skipped where its compiler is not here."""
    file = "cpu.cpp" if target == CPU else "gpu.cu"
    try:
        find_compiler() if target == CPU else compile_command(target)
        lack = None
    except UnavailableError as error:
        lack = str(error)
    for source in sorted(kernels_dir().glob(f"*/{file}")):
        build = Build(target=target, what="library", kernel=f"{source.parent.name}/{file}", outcome="skipped", why=lack)
        if lack is None:
            tell(f"{target}: {build.kernel}")
            make = partial(build_kernel, source) if target == CPU else partial(build_gpu_kernel, source, target)
            build = _made(build, make)
        yield build


def _made(build: Build, make: Callable[[], Library]) -> Build:
    started = time.perf_counter()
    try:
        library = make()
        came = {"outcome": "built" if library.is_new else "cached", "num_bytes": library.path.stat().st_size}
    except UnavailableError as error:
        came = {"outcome": "failed", "why": str(error)}
    return build.model_copy(update={**came, "time_s": time.perf_counter() - started})


def _triton_kernels(target: str, device: DeviceInfo, ask: Ask | None, tell: Say) -> Iterator[Build]:
    skipped = Build(target=target, what="triton", kernel=TRITON, outcome="skipped")
    if ask is None:
        why = "they are compiled for problems: name a model (--model) or a selection table (--selection)"
        yield skipped.model_copy(update={"why": why})
        return
    asked = ask(device)
    yield from (skipped.model_copy(update={"why": why}) for why in asked.reasons)
    try:
        yield from compile_jobs(asked.jobs, asked.dtype, target, device, tell)
        if asked.model is not None:
            yield from _steps(asked.model, target, device, tell)
            tell(f"{target}: {OP}")
            yield from build_settings(target, OP, declared(OP), probe_launches)
    except UnavailableError as error:
        yield skipped.model_copy(update={"why": str(error)})
        return
    if not asked.jobs:
        yield skipped.model_copy(update={"why": "no backend for these problems compiles at a launch"})


def _steps(model: ResolvedModel, target: str, device: DeviceInfo, tell: Say) -> Iterator[Build]:
    """What `engine.elementwise: triton` launches in a run of the model."""
    import torch

    from harness.engines.native.blank import elementwise_launches
    from harness.engines.native.elementwise.choose import choose_elementwise
    from harness.engines.native.runnable import check_runnable

    kernel = f"elementwise of {model.name}"
    tell(f"{target}: {kernel}")
    try:
        check_runnable(model.spec, torch.device("cuda"))
        elementwise = choose_elementwise("triton", Executor(device), model.spec.dtype)
    except (ConfigError, UnavailableError) as none:
        yield Build(target=target, what="triton", kernel=kernel, outcome="skipped", why=none.what)
        return
    yield from build_settings(target, kernel, ({},), lambda _: elementwise_launches(model.spec, elementwise, device))


def _card(target: str) -> DeviceInfo:
    """What a target's name says of a card."""
    arch = target.partition(":")[0]
    kind = "cuda" if platform_of(target) == "cuda" else "dcu" if arch in DCU_ARCHS else "rocm"
    return DeviceInfo.model_validate({"kind": kind, "name": arch, "arch": arch, "wave_width": wave_widths(target)[0]})
