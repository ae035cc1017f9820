"""Every kernel is tested in several builds and in several splits."""

import ctypes
from collections.abc import Callable, Iterator

import pytest
from builds import BUILDS, kernels_of
from native_calls import Kernels

from harness.cpu_pool import CpuPool


@pytest.fixture(params=BUILDS, scope="session")
def kernels(request: pytest.FixtureRequest) -> Callable[[str], Kernels]:
    """Loads the kernels of an operation in one of the builds."""
    return kernels_of(request.param)


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
