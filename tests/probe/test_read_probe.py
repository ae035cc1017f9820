"""The read kernels against numpy, on every build; and that a reader which skips anything is caught."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.cpu_pool import CpuPool
from harness.errors import MeasurementError
from harness.kernel_build import kernel_source, load_kernel
from harness.probe.kernel_reader import KernelBuffer, KernelReader
from harness.probe.matmul import find_peaks
from harness.probe.memory import MemoryProbe, open_cpu_probe
from harness.probe.torch_reader import TorchReader
from harness.specs.device import DeviceInfo
from harness.specs.run import ProbeConfig

CACHE = 1 << 17
DEVICE = DeviceInfo(kind="cpu", name="test CPU", last_level_cache_bytes=CACHE)
QUICK = ProbeConfig(survey_s=0.02, reading_s=1e-6)
BUILDS = ((), ("-march=haswell",), ("-march=x86-64",)) if os.uname().machine == "x86_64" else ((),)
NUM_BYTES = 128 * (1 << 10) + 128  # no multiple of any unroll, so that readers have a rest to read

pytestmark = pytest.mark.compiler


def planted(folder: Path, old: str, new: str) -> ctypes.CDLL:
    """The read kernel with a fault."""
    source = kernel_source("read_probe").read_text().replace('"../cpu_pool.h"', '"cpu_pool.h"')
    assert source.count(old) == 1
    (folder / "cpu.cpp").write_text(source.replace(old, new))
    return load_kernel(folder / "cpu.cpp")


@pytest.mark.parametrize("flags", BUILDS, ids=lambda flags: "".join(flags) or "native")
@pytest.mark.parametrize("num_bytes", [128, 128 * 7, NUM_BYTES])
def test_every_reader_finds_numpys_sum(
    flags: tuple[str, ...], num_bytes: int, cpu_pool: CpuPool, kernel_reference: Callable[[str], ModuleType]
) -> None:
    reference = kernel_reference("read_probe")
    reader = KernelReader(cpu_pool, load_kernel(kernel_source("read_probe"), flags))
    buffer = reader.allocate(num_bytes)
    words = reference.words(0x5EED, num_bytes // 8)
    assert buffer.expected_sum == reference.wrapping_sum(words)
    assert ctypes.string_at(buffer.address, num_bytes) == words.tobytes()
    for variant in reader.variants:
        for num_threads in range(1, cpu_pool.num_threads + 1):
            assert buffer.read(variant, num_threads) == buffer.expected_sum, variant


@pytest.mark.parametrize("flags", BUILDS, ids=lambda flags: "".join(flags) or "native")
def test_copy_and_write_reach_every_word(flags: tuple[str, ...], cpu_pool: CpuPool) -> None:
    reader = KernelReader(cpu_pool, load_kernel(kernel_source("read_probe"), flags))
    buffer = reader.allocate(NUM_BYTES)
    buffer.copy_halves()
    text = ctypes.string_at(buffer.address, NUM_BYTES)
    assert text[: NUM_BYTES // 2] == text[NUM_BYTES // 2 :]
    assert buffer.read(reader.variants[0], 1) == buffer.expected_sum
    buffer.write()
    assert len(set(memoryview(ctypes.string_at(buffer.address, NUM_BYTES)).cast("Q"))) == 1
    assert buffer.read(reader.variants[0], 1) == buffer.expected_sum


def test_the_survey_of_a_small_buffer(cpu_pool: CpuPool, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr("harness.probe.memory.find_peaks", lambda num_threads, time_s, device: {})
    probe = open_cpu_probe(QUICK, cpu_pool, DEVICE)
    report = probe.survey(2 * CACHE)
    assert report.method == "verified-read"
    assert report.buffer_bytes == 4 * CACHE and report.reading_buffer_bytes == 2 * CACHE
    assert report.copy_bytes_per_s and report.write_bytes_per_s and report.working_set_read_bytes_per_s
    assert probe.read().pass_bytes == 2 * CACHE
    probe.close()


@pytest.mark.parametrize("place", [0, NUM_BYTES // 16, NUM_BYTES // 8 - 1])
def test_one_flipped_bit_fails_the_reading(place: int, cpu_pool: CpuPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.probe.memory.find_peaks", lambda num_threads, time_s, device: {})
    config = ProbeConfig(buffer_bytes=NUM_BYTES, survey_s=1e-6, reading_s=1e-6)
    probe = MemoryProbe(config, KernelReader(cpu_pool), DEVICE)
    probe.survey(None)
    probe.read()
    assert isinstance(probe._buffer, KernelBuffer)
    ctypes.c_uint64.from_address(probe._buffer.address + 8 * place).value ^= 1 << 40
    with pytest.raises(MeasurementError, match="checksum"):
        probe.read()
    probe.close()


FAULTS = {
    "skips the rest": (
        "for (size_t i = kStreams * stride; i < num_lines; ++i) add_line",
        "size_t i = 0; if (num_lines == 0) add_line",
    ),
    "reads one line of a turn twice": ("stream * stride + i + u;", "stream * stride + i + u / 2 * 2;"),
    "loses a piece": ("size_t piece; (piece = next", "size_t piece = next++; (piece = next"),
    "reads a piece twice": ("next.fetch_add(1, std::memory_order_relaxed)) < num_pieces", "next++ / 2) < num_pieces"),
    "copies every second line": ("<Line*>(to)[i].vectors + v", "<Line*>(to)[i / 2 * 2].vectors + v"),
    "writes every second line": ("<Line*>(lines)[i].vectors + v", "<Line*>(lines)[i / 2 * 2].vectors + v"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_caught(
    fault: str, tmp_path: Path, cpu_pool: CpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpu_pool.num_threads == 1 and "thread" in fault:
        pytest.skip("needs two cores")
    monkeypatch.setattr("harness.probe.memory.find_peaks", lambda num_threads, time_s, device: {})
    reader = KernelReader(cpu_pool, planted(tmp_path, *FAULTS[fault]))
    probe = MemoryProbe(ProbeConfig(buffer_bytes=NUM_BYTES, survey_s=1e-6), reader, DEVICE)
    with pytest.raises(MeasurementError, match="checksum"):
        probe.survey(None)
    probe.close()


@pytest.mark.torch
def test_torch_reads_what_numpy_wrote(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    threads = torch.get_num_threads()
    probe = open_cpu_probe(QUICK, None, DEVICE)
    report = probe.survey(2 * CACHE)
    assert report.method == "torch-reduction" and report.baseline_read_bytes_per_s is None
    assert set(report.peak_flop_per_s) == {"BF16", "F16", "F32"}
    assert probe.read().pass_bytes == 2 * CACHE
    assert torch.get_num_threads() == threads
    probe.close()


@pytest.mark.torch
def test_torch_finds_a_flipped_word() -> None:
    reader = TorchReader()
    buffer = reader.allocate(NUM_BYTES)
    assert buffer.read(reader.variants[0], 1) == buffer.expected_sum
    buffer._pages.map[NUM_BYTES - 3] ^= 1
    assert buffer.read(reader.variants[0], 1) != buffer.expected_sum
    buffer.close()


def test_no_peak_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.probe.matmul.find_spec", lambda name: None)
    assert find_peaks(1, 1.0) == {}
