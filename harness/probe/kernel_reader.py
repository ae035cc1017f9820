"""Reads memory by kernels/read_probe, on the pool that the engine's kernels run on."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import Literal

from harness.cpu_pool import CpuPool
from harness.kernel_build import kernel_source, load_kernel
from harness.probe.pages import Pages
from harness.probe.reader import LINE_BYTES, SUM_MASK, WORD_BYTES

_SEED = 0x5EED
_WRITTEN_WORD = 0x0123456789ABCDEF


class KernelReader:
    """Every variant of the read kernel; each pass returns the sum that proves it.

    library: the built kernel; by default ours, for this machine's instruction sets.
    """

    method: Literal["verified-read"] = "verified-read"

    def __init__(self, pool: CpuPool, library: ctypes.CDLL | None = None) -> None:
        self.pool = pool
        self.library = _declare(library or load_kernel(kernel_source("read_probe")))
        self.num_threads = pool.num_threads
        count = self.library.read_probe_num_variants()
        self.variants = tuple(self.library.read_probe_variant(i).decode() for i in range(count))

    def session(self) -> AbstractContextManager[None]:
        """Pins the caller, which is the pool's thread 0, and parks the workers at the end."""
        return self.pool.pinned()

    def allocate(self, num_bytes: int) -> KernelBuffer:
        return KernelBuffer(self, num_bytes)


class KernelBuffer:
    """A buffer that the kernels fill and read; the expected sums come from their generator alone."""

    def __init__(self, reader: KernelReader, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.expected_sum = 0
        self._reader = reader
        self._library = reader.library
        self._pool = reader.pool.handle
        self._pages = Pages(num_bytes)
        self.fill()

    @property
    def address(self) -> int:
        return self._pages.address

    def huge_pages(self) -> bool | None:
        return self._pages.huge_pages()

    def read(self, variant: str, num_threads: int) -> int:
        index = self._reader.variants.index(variant)
        total: int = self._library.read_probe_read(self._pool, index, self.address, self._num_lines, num_threads)
        return total

    def fill(self) -> None:
        self._library.read_probe_fill(self._pool, _SEED, self.address, self._num_lines)
        self.expected_sum = self._generated_sum(self._num_lines)
        self._half_sum = self._generated_sum(self._num_lines // 2)

    def copy_halves(self) -> None:
        half_lines = self._num_lines // 2
        middle = self.address + half_lines * LINE_BYTES
        self._library.read_probe_copy(self._pool, middle, self.address, half_lines)
        self.expected_sum = 2 * self._half_sum & SUM_MASK

    def write(self) -> None:
        self._library.read_probe_write(self._pool, self.address, self._num_lines, _WRITTEN_WORD)
        self.expected_sum = _WRITTEN_WORD * (self.num_bytes // WORD_BYTES) & SUM_MASK

    def close(self) -> None:
        self._pages.close()

    @property
    def _num_lines(self) -> int:
        return self.num_bytes // LINE_BYTES

    def _generated_sum(self, num_lines: int) -> int:
        total: int = self._library.read_probe_expected(self._pool, _SEED, num_lines)
        return total


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pool, lines, size, word, number = (
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_uint64,
        ctypes.c_int,
    )
    signatures = {
        "num_variants": (number, ()),
        "variant": (ctypes.c_char_p, (number,)),
        "read": (word, (pool, number, lines, size, number)),
        "expected": (word, (pool, word, size)),
        "fill": (None, (pool, word, lines, size)),
        "copy": (None, (pool, lines, lines, size)),
        "write": (None, (pool, lines, size, word)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"read_probe_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
