"""Times calls: on a CPU a loop, on a GPU a captured graph, so that no host's launch is part of a kernel's time."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

from harness.backends.base import Launch, OwnExecutor
from harness.devices.spinning import wait_for_spinning_threads

PAGE_BYTES = 4096
FLUSH_BYTES = 512 << 20
"""Twice the largest last-level cache of a GPU that we know of, an MI300X's."""


class Sampler:
    """Of one executor."""

    def __init__(self, executor: OwnExecutor) -> None:
        self._executor = executor
        self._on_cpu = executor.device.kind == "cpu"

    @property
    def calls_a_place(self) -> int:
        """How often `seconds` makes each timed call: a graph is replayed once before its time counts."""
        return 1 if self._on_cpu else 2

    def settle(self) -> None:
        """Returns when nothing of the side before runs any more. MeasurementError where its threads never sleep."""
        if not self._on_cpu:
            return
        if self._executor.pool is not None:
            self._executor.pool.park()
        wait_for_spinning_threads()

    def seconds(self, launches: Sequence[Launch], uses_pool: bool) -> float:
        """Of all launches but the first, which is not timed; to be called when all is settled."""
        return self._loop_s(launches, uses_pool) if self._on_cpu else self._graph_s(launches)

    def run(self, launch: Launch) -> None:
        """One call, and its end."""
        import torch

        self._wait()  # for operands that were made on another stream
        on_stream = contextlib.nullcontext() if self._on_cpu else torch.cuda.stream(self._executor.stream)
        with torch.inference_mode(), on_stream:
            launch()
        self._wait()

    def _wait(self) -> None:
        import torch

        if not self._on_cpu:
            torch.cuda.synchronize()

    def memory_bytes(self) -> int:
        """Held of the device's memory: on a CPU this process's resident pages, on a GPU all that is not free."""
        if self._on_cpu:
            _give_back_free_memory()
            return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
        import torch

        torch.cuda.empty_cache()  # what torch's allocator holds free would hide a copy, too
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def _loop_s(self, launches: Sequence[Launch], uses_pool: bool) -> float:
        import torch

        pool = self._executor.pool
        # The caller is the pool's first thread, on the first core; torch's threads go where the system puts them.
        place = pool.pinned() if pool is not None and uses_pool else contextlib.nullcontext()
        with torch.inference_mode(), place:
            launches[0]()
            started = time.perf_counter()
            for launch in launches[1:]:
                launch()
            return time.perf_counter() - started

    def _graph_s(self, launches: Sequence[Launch]) -> float:
        import torch

        graph = torch.cuda.CUDAGraph()
        self._wait()
        with torch.inference_mode(), torch.cuda.graph(graph, stream=self._executor.stream):
            for launch in launches[1:]:
                launch()
        graph.replay()
        self._flush()
        started = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - started

    def _flush(self) -> None:
        """Leaves nothing of the first replay in a GPU's caches: the second one walks over the same places."""
        import torch

        assert self._executor.stream is not None
        torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device=self._executor.stream.device)
        torch.cuda.synchronize()


def _give_back_free_memory() -> None:
    """What the allocator holds free would hide a copy that moves in there. Other C libraries than glibc have no such
    call, and give large blocks back by themselves."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
