"""Every kernel is tested in several builds and in several splits."""

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

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


class _Pool(ctypes.Structure):
    """The C `cpu_pool` of kernels/cpu_pool.h, with more threads than there are cores."""

    _fields_ = (("num_threads", ctypes.c_int), ("run", _RUN))

    @classmethod
    def in_turns(cls, num_threads: int) -> "_Pool":
        """Threads do their shares one after the other, the last one first.

        Splits work as a machine of many cores does, and a share that needs another's result is wrong every time.
        """

        def run(pool: int, task: int, arguments: int) -> None:
            for thread in reversed(range(num_threads)):
                _TASK(task)(arguments, thread, num_threads)

        return cls(num_threads, _RUN(run))

    @classmethod
    def at_once(cls, num_threads: int) -> "_Pool":
        """Python's threads: who claims what comes first gets little where others are before him."""

        def run(pool: int, task: int, arguments: int) -> None:
            body = _TASK(task)
            with ThreadPoolExecutor(num_threads) as threads:
                list(threads.map(lambda thread: body(arguments, thread, num_threads), range(num_threads)))

        return cls(num_threads, _RUN(run))


@pytest.fixture(params=["caller", "threads", "in-turns-7", "at-once-7"], scope="session")
def pool(request: pytest.FixtureRequest, cpu_pool: CpuPool) -> Iterator[tuple[int, int]]:
    """(address, number of threads): no pool, a real one, or seven shares."""
    in_turns, at_once = _Pool.in_turns(7), _Pool.at_once(7)
    pools = {
        "caller": (0, 1),
        "threads": (cpu_pool.handle, cpu_pool.num_threads),
        "in-turns-7": (ctypes.addressof(in_turns), 7),
        "at-once-7": (ctypes.addressof(at_once), 7),
    }
    yield pools[request.param]
