"""The roof of a device: the fastest verified reader of its memory that we can write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.cpu_pool import CpuPool
from harness.devices.cpu import available_memory_bytes
from harness.errors import ConfigError
from harness.probe.base import Probe
from harness.probe.baseline import first_read_bytes_per_s
from harness.probe.gpu_reader import GpuReader
from harness.probe.kernel_reader import KernelReader
from harness.probe.matmul import Peak, find_peaks, flop_per_s_now
from harness.probe.reader import BUFFER_ALIGN_BYTES, Buffer, Reader
from harness.probe.timing import Candidate, describe, fastest, move_bytes_per_s, pass_s, rounds_s, speed, sweep_points
from harness.probe.torch_reader import TorchReader
from harness.specs.device import DeviceInfo
from harness.specs.probe import PeakReading, ProbeReading, ProbeReport
from harness.specs.run import ProbeConfig

CACHES_PER_BUFFER = 4
"""A buffer of so many last-level caches leaves at most a quarter of itself cached for the next pass."""
_BUFFER_OF_UNKNOWN_CACHE_BYTES = 1 << 30
_UNKNOWN_MEMORY_BYTES = 4 << 30
_MEMORY_FRAC = 0.25
"""Of the available memory, for our buffer: the engine's weights come after it."""

PEAK_READING_S = 0.4
# How survey_s is shared out.
_SWEEP_FRAC = 0.4
_CURVE_FRAC = 0.15
_BEST_FRAC = 0.1
_WORKING_SET_FRAC = 0.05
_COPY_FRAC = 0.05
_WRITE_FRAC = 0.05
_PEAK_FRAC = 0.2


def open_cpu_probe(config: ProbeConfig, pool: CpuPool | None, device: DeviceInfo) -> Probe:
    """The best probe that can be had here.

    pool: None where no compiler could build one; then torch reads, which finds a lower roof (method
    torch-reduction). UnavailableError where there is no torch either.
    """
    reader: Reader = TorchReader() if pool is None else KernelReader(pool)
    return MemoryProbe(config, reader, device)


@dataclass(frozen=True)
class Place:
    """Where the memory is that is read."""

    free_bytes: Callable[[], int | None]
    least_buffer_bytes: int
    """A pass must be long beside what it takes to launch it and to hear of its end."""
    torch_device: str
    """Where matrix products are timed."""


CPU = Place(free_bytes=lambda: available_memory_bytes(), least_buffer_bytes=0, torch_device="cpu")
LEAST_GPU_BUFFER_BYTES = 4 << 30
"""A millisecond at 4 TB/s, beside which a launch and its end of some 20 us are 2 per cent."""


def open_gpu_probe(config: ProbeConfig, device: DeviceInfo, stream: Any) -> Probe:
    """UnavailableError without the card's compiler."""

    def free_bytes() -> int | None:
        import torch

        return int(torch.cuda.mem_get_info(stream.device)[0])

    place = Place(free_bytes, LEAST_GPU_BUFFER_BYTES, str(stream.device))
    return MemoryProbe(config, GpuReader(device, stream), device, place)


class MemoryProbe:
    """Implements harness.probe.base.Probe over any Reader.

    Holds one buffer from the survey to close(): the large one, or one of the engine's working set where that
    is what readings are taken of.
    """

    def __init__(self, config: ProbeConfig, reader: Reader, device: DeviceInfo, place: Place = CPU) -> None:
        self._config, self._place = config, place
        self._reader = reader
        self._device = device
        self._buffer: Buffer | None = None
        self._best: Candidate = (reader.variants[0], reader.num_threads)
        self._peaks: dict[str, Peak] = {}

    def survey(self, working_set_bytes: int | None) -> ProbeReport:
        """See Probe.survey. Takes about config.survey_s, at the least one pass of every candidate.

        Raises MeasurementError for a wrong checksum, ConfigError for a buffer larger than the available
        memory.
        """
        self.close()
        with self._reader.session():
            buffer = self._buffer = self._reader.allocate(self._buffer_bytes())
            sweep_s = rounds_s(buffer, self._variants(), self._share_s(_SWEEP_FRAC))
            curve_s = rounds_s(buffer, self._thread_counts(fastest(sweep_s)), self._share_s(_CURVE_FRAC))
            self._best = fastest(curve_s)
            sweep, curve = sweep_points(buffer, sweep_s), sweep_points(buffer, curve_s)
            best = speed(buffer, self._best, self._share_s(_BEST_FRAC))
            huge_pages = buffer.huge_pages()
            copy = move_bytes_per_s(buffer, buffer.copy_halves, self._best, self._share_s(_COPY_FRAC))
            write = move_bytes_per_s(buffer, buffer.write, self._best, self._share_s(_WRITE_FRAC))
            working_set = self._prepare_readings(buffer, working_set_bytes)
        self._peaks = find_peaks(self._reader.num_threads, self._share_s(_PEAK_FRAC), self._place.torch_device)
        return ProbeReport(
            method=self._reader.method,
            variant=describe(self._best),
            num_threads=self._best[1],
            buffer_bytes=buffer.num_bytes,
            huge_pages=huge_pages,
            read_bytes_per_s=best,
            reading_buffer_bytes=self._buffer.num_bytes,
            working_set_read_bytes_per_s=working_set,
            copy_bytes_per_s=copy,
            write_bytes_per_s=write,
            sweep=sweep,
            thread_curve=curve,
            peak_flop_per_s={dtype: peak.flop_per_s for dtype, peak in self._peaks.items()},
            peak_arithmetic={dtype: peak.arithmetic for dtype, peak in self._peaks.items()},
            baseline_read_bytes_per_s=self._baseline(best, buffer.num_bytes),
        )

    def read(self, reading_s: float | None = None) -> ProbeReading:
        """See Probe.read. An untimed pass goes first: what the caches hold before it is the engine's."""
        if self._buffer is None:
            raise ValueError("survey() must run before read()")
        with self._reader.session():
            pass_s(self._buffer, self._best)
            time_s = self._config.reading_s if reading_s is None else reading_s
            passes_s = rounds_s(self._buffer, [self._best], time_s)[self._best]
        return ProbeReading(pass_bytes=self._buffer.num_bytes, passes_s=tuple(passes_s), variant=describe(self._best))

    def read_peak(self, dtype: str) -> PeakReading | None:
        """See Probe.read_peak. In the arithmetic that the survey found the fastest for the type."""
        if dtype not in self._peaks:
            return None
        arithmetic = self._peaks[dtype].arithmetic
        now = flop_per_s_now(arithmetic, self._reader.num_threads, PEAK_READING_S, self._place.torch_device)
        return None if now is None else PeakReading(dtype=dtype, flop_per_s=now)

    def close(self) -> None:
        """Gives the buffer's memory back. A second call does nothing."""
        if self._buffer is not None:
            self._buffer.close()
        self._buffer = None

    def _share_s(self, frac: float) -> float:
        return self._config.survey_s * frac

    def _variants(self) -> list[Candidate]:
        return [(variant, self._reader.num_threads) for variant in self._reader.variants]

    def _thread_counts(self, best: Candidate) -> list[Candidate]:
        """1, 2, 4, ... and all threads: a memory may be saturated before the cores are."""
        powers = (1 << i for i in range(self._reader.num_threads.bit_length()))
        return [(best[0], count) for count in sorted({*powers, self._reader.num_threads})]

    def _buffer_bytes(self) -> int:
        """As configured, else four caches as far as memory allows."""
        available = self._available_bytes()
        if self._config.buffer_bytes is None:
            cache = self._device.last_level_cache_bytes
            wanted = CACHES_PER_BUFFER * cache if cache else _BUFFER_OF_UNKNOWN_CACHE_BYTES
            wanted = max(wanted, self._place.least_buffer_bytes)
            return _whole_lines(min(wanted, int(available * _MEMORY_FRAC)))
        if self._config.buffer_bytes > available:
            raise ConfigError(
                f"probe.buffer_bytes is {self._config.buffer_bytes}, and {available} bytes are available",
                "set a smaller one, or leave it out",
            )
        return _whole_lines(self._config.buffer_bytes)

    def _available_bytes(self) -> int:
        known = (self._place.free_bytes(), self._device.memory_bytes, _UNKNOWN_MEMORY_BYTES)
        return next(num_bytes for num_bytes in known if num_bytes is not None)

    def _prepare_readings(self, buffer: Buffer, working_set_bytes: int | None) -> float | None:
        """Leaves the buffer that readings are taken of; its speed where that is the working set."""
        if working_set_bytes is None or not self._suits_readings(working_set_bytes, buffer.num_bytes):
            buffer.fill()
            return None
        self.close()
        self._buffer = self._reader.allocate(_whole_lines(working_set_bytes))
        return speed(self._buffer, self._best, self._share_s(_WORKING_SET_FRAC))

    def _suits_readings(self, working_set_bytes: int, buffer_bytes: int) -> bool:
        """One to four caches: some of it stays cached from step to step, and so must the probe's.

        A smaller one measures no memory; a larger one is like the large buffer. And it must fit where the
        large buffer did, or into our share of the memory.
        """
        cache = self._device.last_level_cache_bytes
        room_bytes = max(buffer_bytes, int(self._available_bytes() * _MEMORY_FRAC))
        return (
            cache is not None
            and cache <= working_set_bytes < CACHES_PER_BUFFER * cache
            and working_set_bytes <= room_bytes
        )

    def _baseline(self, read_bytes_per_s: float, buffer_bytes: int) -> float | None:
        """Of verified readers of a whole buffer only: the rest are no figures of this machine's memory."""
        cache = self._device.last_level_cache_bytes
        whole = cache is None or buffer_bytes >= _whole_lines(CACHES_PER_BUFFER * cache)
        if self._reader.method != "verified-read" or not whole:
            return None
        return first_read_bytes_per_s(self._device, self._reader.num_threads, read_bytes_per_s)


def _whole_lines(num_bytes: int) -> int:
    """Rounded down to what buffers may have, at least one of those."""
    return max(num_bytes // BUFFER_ALIGN_BYTES, 1) * BUFFER_ALIGN_BYTES
