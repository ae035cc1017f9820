"""The OpenMP threads that torch and vLLM compute on, as threads for our CPU kernels.

Two kinds of threads on the same cores take turns spinning: OpenMP's spin for up to 200 ms after a region, and a pool of
ours beside them would get every other time slice. So a kernel that runs inside somebody else's step runs on his.
"""

import ctypes

from harness.errors import UnavailableError
from harness.kernel_build import kernel_source, load_kernel


class OpenMpPool:
    """The team of the calling thread; a launch comes from that thread alone.

    num_threads: as many as the process computes with. torch must be imported. UnavailableError where no OpenMP runtime
    is loaded, or where it gives fewer threads.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._library = _load()
        parallel, thread, team = _runtime("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        self._handle: int | None = self._library.openmp_pool_create(num_threads, parallel, thread)
        found = self._library.openmp_pool_team(self.handle, team)
        if found != num_threads:
            self.close()
            raise UnavailableError(
                f"OpenMP gives {found} of {num_threads} threads", "raise OMP_THREAD_LIMIT, and unset OMP_DYNAMIC"
            )

    @property
    def handle(self) -> int:
        """Address of the C `cpu_pool`, to be passed as ctypes.c_void_p."""
        if self._handle is None:
            raise ValueError("the pool is closed")
        return self._handle

    def close(self) -> None:
        """Frees the handle; the threads are not ours to end. A second call does nothing."""
        if self._handle is not None:
            self._library.openmp_pool_destroy(self._handle)
        self._handle = None


def _runtime(*names: str) -> list[int | None]:
    """Addresses in the runtime that the process calls, which a preloaded one provides instead of torch's own."""
    process = ctypes.CDLL(None)
    try:
        return [ctypes.cast(getattr(process, name), ctypes.c_void_p).value for name in names]
    except AttributeError as fault:
        raise UnavailableError(
            f"no OpenMP runtime is loaded: {fault}", "import torch before, in a build that has OpenMP"
        ) from None


def _load() -> ctypes.CDLL:
    library = load_kernel(kernel_source("openmp_pool"))
    library.openmp_pool_create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    library.openmp_pool_create.restype = ctypes.c_void_p
    library.openmp_pool_team.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.openmp_pool_team.restype = ctypes.c_int
    library.openmp_pool_destroy.argtypes = (ctypes.c_void_p,)
    library.openmp_pool_destroy.restype = None
    return library
