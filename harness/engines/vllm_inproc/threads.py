"""Binds the OpenMP threads of this process to cores, one each: what vLLM does for worker processes alone.

A running OpenMP library reads no more variables, so its threads bind themselves: a callback runs on each of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence

from harness.errors import ConfigError

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Symbol(ctypes.Structure):
    """glibc's Dl_info."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def openmp_runtime() -> str:
    """File of the OpenMP library that torch and vLLM call: a preloaded one goes before torch's own. Others may be
    loaded beside it, by packages that bring theirs."""
    process, found = ctypes.CDLL(None), _Symbol()
    address = ctypes.cast(process.GOMP_parallel, ctypes.c_void_p)
    process.dladdr(address, ctypes.byref(found))
    return os.fsdecode(found.file)


def bind_openmp_threads(cores: Sequence[int]) -> None:
    """The calling thread's OpenMP team stays on these cores, worker i on cores[i]. The calling thread itself, which is
    worker 0, keeps its mask: threads that it makes later would inherit it (`on_core`). ConfigError for a core that this
    process may not use."""
    allowed = os.sched_getaffinity(0)
    if not allowed.issuperset(cores):
        raise ConfigError(
            f"VLLM_CPU_OMP_THREADS_BIND names core {min(set(cores) - allowed)}, which this process may not use",
            f"choose among {sorted(allowed)}",
        )
    process = ctypes.CDLL(None)

    def bind(_: int | None) -> None:
        worker = process.omp_get_thread_num()
        if worker:
            os.sched_setaffinity(0, {cores[worker]})

    # What compilers make of `#pragma omp parallel`: GNU's library has it, and Intel's and LLVM's for its sake.
    process.GOMP_parallel(_CALLBACK(bind), None, ctypes.c_uint(len(cores)), ctypes.c_uint(0))


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """The calling thread stays on a core; None leaves it alone."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
