"""The builds that kernels are tested in: for this machine, for AVX2 and for plain x86-64, with tiles and without."""

import functools
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from native_calls import Kernels

from harness.devices.cpu import cpu_flags
from harness.kernel_build import kernel_source, load_kernel

ON_X86 = platform.machine() == "x86_64"
BUILDS: dict[str, tuple[str, ...]] = {"native": (), "avx2": ("-march=haswell",), "portable": ("-march=x86-64",)}
TILE_BUILDS = {"tiles-in-software": ("-DTILES_IN_SOFTWARE",), "without-tiles": ("-mno-amx-bf16",)}
"""Beside them for kernels that use tiles (kernels/tiles.h): the native build has what this machine has."""
WHY_NOT = {
    "avx2": "" if ON_X86 and "avx2" in cpu_flags() else "no AVX2 here",
    "portable": "" if ON_X86 else "the native build is the portable one here",
    "without-tiles": "" if "amx_bf16" in cpu_flags() else "the native build has none here",
}


@functools.cache
def built(op: str) -> dict[str, Kernels]:
    """An operation in every build that runs here, compiled side by side: a compiler has one core."""
    builds = {**BUILDS, **TILE_BUILDS} if op == "gemv" else BUILDS
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {
            build: pool.submit(load_kernel, kernel_source(op), flags)
            for build, flags in builds.items()
            if not WHY_NOT.get(build)
        }
    return {build: Kernels(job.result()) for build, job in jobs.items()}


def kernels_of(build: str) -> Callable[[str], Kernels]:
    """Loads the kernels of an operation in one build, and skips the test where it does not run."""
    if why := WHY_NOT.get(build):
        pytest.skip(why)
    return lambda op: built(op)[build]
