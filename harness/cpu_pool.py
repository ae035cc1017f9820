"""The threads that CPU kernels run on: one pool for the engine, the probe and every backend."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from harness.devices.cpu import physical_cores
from harness.errors import ConfigError, UnavailableError
from harness.kernel_build import kernel_source, load_kernel

__all__ = ["CpuPool", "physical_cores"]


class CpuPool:
    """Threads pinned to `cores`, one each; the thread that launches works as the one on cores[0].

    Kernels take `handle` where a GPU kernel takes a stream (kernels/cpu_pool.h). Launches are synchronous,
    and one thread at a time may launch, park or close. Between launches the workers spin for about 2 ms and
    then sleep; `park()` sends them to sleep at once.

    Not inherited by fork(): a child process has the handle but not the threads, so a launch there would wait
    for ever. A child makes its own pool, and its close() of an inherited one does nothing.

    cores: logical CPUs, distinct; by default one for each physical core. Raises ConfigError for an empty
    list, duplicates, or a core that this process may not use; UnavailableError where the pool can't be built.
    """

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        self.cores = tuple(physical_cores() if cores is None else cores)
        _check_cores(self.cores)
        self._library = _load()
        self._process = os.getpid()
        array = (ctypes.c_int * len(self.cores))(*self.cores)
        self._handle: int | None = self._library.cpu_pool_create(array, len(self.cores))
        if self._handle is None:
            reason = os.strerror(ctypes.get_errno())
            raise UnavailableError(f"can't start threads on cores {self.cores}: {reason}", "use fewer threads")

    @property
    def handle(self) -> int:
        """Address of the C `cpu_pool`, to be passed as ctypes.c_void_p."""
        if self._handle is None:
            raise ValueError("the pool is closed")
        return self._handle

    @property
    def num_threads(self) -> int:
        """Threads that a launch runs on, the caller's included."""
        return len(self.cores)

    def park(self) -> None:
        """Puts all workers to sleep and returns when they are; the next launch wakes them."""
        self._library.cpu_pool_park(self.handle)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Pins the calling thread to cores[0], and on leaving restores its old mask and parks the workers.

        A thread that is created inside inherits the mask: OpenMP would put all of its threads on cores[0]. So
        torch must have started its threads before (one matrix product after set_num_threads is enough).
        """
        before = os.sched_getaffinity(0)  # 0 is the calling thread, not the process
        os.sched_setaffinity(0, {self.cores[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
            self.park()

    def close(self) -> None:
        """Ends the threads. A second call does nothing."""
        if self._handle is not None and self._process == os.getpid():
            self._library.cpu_pool_destroy(self._handle)
        self._handle = None

    def __enter__(self) -> "CpuPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_cores(cores: tuple[int, ...]) -> None:
    allowed = os.sched_getaffinity(0)
    mend = f"choose among {sorted(allowed)}, each once"
    if not cores:
        raise ConfigError("a thread pool needs at least one core", mend)
    if len(set(cores)) < len(cores):
        raise ConfigError(f"cores {cores} name a core twice", mend)
    if not allowed.issuperset(cores):
        raise ConfigError(f"this process may not use core {min(set(cores) - allowed)}", mend)


def _load() -> ctypes.CDLL:
    library = load_kernel(kernel_source("cpu_pool"))
    library.cpu_pool_create.argtypes = (ctypes.POINTER(ctypes.c_int), ctypes.c_int)
    library.cpu_pool_create.restype = ctypes.c_void_p
    for function in (library.cpu_pool_park, library.cpu_pool_destroy):
        function.argtypes = (ctypes.c_void_p,)
        function.restype = None
    return library
