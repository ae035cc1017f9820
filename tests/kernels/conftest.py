"""Every kernel is tested as built for this machine, for AVX2 and for plain x86-64, and in several splits."""

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from native_calls import Kernels

from harness.cpu_pool import CpuPool
from harness.devices.cpu import cpu_flags
from harness.kernel_build import kernel_source, load_kernel

ON_X86 = platform.machine() == "x86_64"
BUILDS: dict[str, tuple[str, ...]] = {"native": (), "avx2": ("-march=haswell",), "portable": ("-march=x86-64",)}
WHY_NOT = {
    "avx2": "" if ON_X86 and "avx2" in cpu_flags() else "no AVX2 here",
    "portable": "" if ON_X86 else "the native build is the portable one here",
}


@functools.cache
def built(op: str) -> dict[str, Kernels]:
    """An operation in every build that runs here, compiled side by side: a compiler has one core."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {
            build: pool.submit(load_kernel, kernel_source(op), flags)
            for build, flags in BUILDS.items()
            if not WHY_NOT.get(build)
        }
    return {build: Kernels(job.result()) for build, job in jobs.items()}


@pytest.fixture(params=BUILDS, scope="session")
def kernels(request: pytest.FixtureRequest) -> Callable[[str], Kernels]:
    """Loads the kernels of an operation in one of the builds."""
    if why := WHY_NOT.get(request.param):
        pytest.skip(why)
    return lambda op: built(op)[request.param]


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _SerialPool(ctypes.Structure):
    """The C `cpu_pool` of kernels/cpu_pool.h, whose threads do their shares in turns, the last one first.

    Splits work as a machine of many cores does, and a share that needs another's result is wrong every time.
    """

    _fields_ = (("num_threads", ctypes.c_int), ("run", _RUN))

    @classmethod
    def of(cls, num_threads: int) -> "_SerialPool":
        def run(pool: int, task: int, arguments: int) -> None:
            for thread in reversed(range(num_threads)):
                _TASK(task)(arguments, thread, num_threads)

        return cls(num_threads, _RUN(run))


@pytest.fixture(params=["caller", "threads", "serial-7"], scope="session")
def pool(request: pytest.FixtureRequest, cpu_pool: CpuPool) -> Iterator[tuple[int, int]]:
    """(address, number of threads): no pool, a real one, or seven shares."""
    serial = _SerialPool.of(7)
    pools = {
        "caller": (0, 1),
        "threads": (cpu_pool.handle, cpu_pool.num_threads),
        "serial-7": (ctypes.addressof(serial), 7),
    }
    yield pools[request.param]
