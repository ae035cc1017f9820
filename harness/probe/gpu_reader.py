"""Reads a GPU's memory by kernels/read_probe/gpu.cu, in memory that torch allocates, on the executor's stream."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import UnavailableError
from harness.gpu_build import load_gpu_kernel
from harness.kernel_build import kernel_source
from harness.probe.reader import LINE_BYTES, SUM_MASK, WORD_BYTES
from harness.specs.device import DeviceInfo

if TYPE_CHECKING:
    from torch import Tensor

BLOCKS_PER_UNIT = 16
"""More than any card has room for at once: the last ones to be placed even out."""
_SEED = 0x5EED
_WRITTEN_WORD = 0x0123456789ABCDEF


class GpuReader:
    """Every variant of the read kernel; each pass returns the sum that proves it. What the probe calls threads are
    blocks here.

    stream: a torch.cuda.Stream; None where the kernels were built for the host, in tests.
    """

    method: Literal["verified-read"] = "verified-read"

    def __init__(self, device: DeviceInfo, stream: Any | None) -> None:
        self._library = load_gpu_kernel(kernel_source("read_probe", "gpu.cu"), device.arch or "")
        self._library.read_probe_variant.restype = ctypes.c_char_p
        self._library.gpu_error_text.restype = ctypes.c_char_p
        self._stream = stream
        self.num_threads = BLOCKS_PER_UNIT * (device.num_compute_units or 1)
        count = self._library.read_probe_num_variants()
        self.variants = tuple(self._library.read_probe_variant(i).decode() for i in range(count))

    def session(self) -> AbstractContextManager[None]:
        """Nothing: no thread of ours is in the way of a card."""
        return nullcontext()

    def allocate(self, num_bytes: int) -> GpuBuffer:
        import torch

        place = torch.device("cpu" if self._stream is None else self._stream.device)
        try:
            return GpuBuffer(self, torch.empty(num_bytes, dtype=torch.uint8, device=place))
        except torch.OutOfMemoryError as fault:
            raise UnavailableError(f"no {num_bytes:,} B are free on the card", "free memory on it") from fault

    def call(self, name: str, *arguments: int) -> None:
        """Launches a kernel and waits for its end."""
        stream = 0 if self._stream is None else self._stream.cuda_stream
        slots = (ctypes.c_uint64 * (len(arguments) + 1))(*(value & SUM_MASK for value in arguments), stream)
        code = getattr(self._library, f"read_probe_{name}")(slots)
        if self._stream is not None:
            self._stream.synchronize()
        if code:
            reason = self._library.gpu_error_text(code).decode()
            raise UnavailableError(f"the read probe was not launched: {reason}", "report it with this card's name")


class GpuBuffer:
    """A buffer that the kernels fill and read; the expected sums come from their generator alone."""

    def __init__(self, reader: GpuReader, memory: Tensor) -> None:
        import torch

        self.num_bytes = memory.nbytes
        self.expected_sum = 0
        self._reader = reader
        self._memory: Tensor | None = memory
        self._partials = torch.zeros(reader.num_threads, dtype=torch.int64, device=memory.device)
        self._sum = torch.zeros(1, dtype=torch.int64, device=memory.device)
        self.fill()

    def huge_pages(self) -> bool | None:
        """A driver's pages are its own affair."""
        return None

    def read(self, variant: str, num_threads: int) -> int:
        index = self._reader.variants.index(variant)
        self._reader.call("read", self._address, self._num_lines, index, num_threads, *self._results())
        return int(self._sum) & SUM_MASK

    def fill(self) -> None:
        self._reader.call("fill", _SEED, self._address, self._num_lines, self._reader.num_threads)
        self.expected_sum = self._generated_sum(self._num_lines)
        self._half_sum = self._generated_sum(self._num_lines // 2)

    def copy_halves(self) -> None:
        half_lines = self._num_lines // 2
        middle = self._address + half_lines * LINE_BYTES
        self._reader.call("copy", middle, self._address, half_lines, self._reader.num_threads)
        self.expected_sum = 2 * self._half_sum & SUM_MASK

    def write(self) -> None:
        self._reader.call("write", self._address, self._num_lines, _WRITTEN_WORD, self._reader.num_threads)
        self.expected_sum = _WRITTEN_WORD * (self.num_bytes // WORD_BYTES) & SUM_MASK

    def close(self) -> None:
        self._memory = None

    @property
    def _address(self) -> int:
        if self._memory is None:
            raise ValueError("the buffer is closed")
        return self._memory.data_ptr()

    @property
    def _num_lines(self) -> int:
        return self.num_bytes // LINE_BYTES

    def _results(self) -> tuple[int, int]:
        return self._partials.data_ptr(), self._sum.data_ptr()

    def _generated_sum(self, num_lines: int) -> int:
        self._reader.call("expected", _SEED, num_lines, self._reader.num_threads, *self._results())
        return int(self._sum) & SUM_MASK
