"""The GPU's reader over kernels that were built for the host: every sum is numpy's, copy and write reach every word."""

from collections.abc import Callable
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from harness.errors import UnavailableError  # noqa: E402
from harness.probe import gpu_reader  # noqa: E402
from harness.probe.memory import MemoryProbe, Place  # noqa: E402
from harness.probe.timing import pass_s  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.run import ProbeConfig  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

HOST = DeviceInfo(kind="rocm", name="the host", arch="host", num_compute_units=1)
NUM_BYTES = 128 * 150 + 128  # no multiple of any unroll, so that readers have a rest to read


@pytest.fixture
def reader() -> gpu_reader.GpuReader:
    """Its library is that of the kernels' own tests."""
    return gpu_reader.GpuReader(HOST, None)


def words(buffer: gpu_reader.GpuBuffer) -> bytes:
    assert buffer._memory is not None
    return buffer._memory.numpy().tobytes()


def test_every_variant_finds_numpys_sum(
    reader: gpu_reader.GpuReader, kernel_reference: Callable[[str], ModuleType]
) -> None:
    reference = kernel_reference("read_probe")
    buffer = reader.allocate(NUM_BYTES)
    expected = reference.words(gpu_reader._SEED, NUM_BYTES // 8)
    assert words(buffer) == expected.tobytes()
    assert buffer.expected_sum == reference.wrapping_sum(expected)
    for variant in reader.variants:
        for num_blocks in (1, 3, reader.num_threads):
            assert buffer.read(variant, num_blocks) == buffer.expected_sum, (variant, num_blocks)


def test_copy_and_write_reach_every_word(reader: gpu_reader.GpuReader) -> None:
    buffer = reader.allocate(NUM_BYTES)
    buffer.copy_halves()
    text = words(buffer)
    assert text[: NUM_BYTES // 2] == text[NUM_BYTES // 2 :]
    assert buffer.read(reader.variants[0], 4) == buffer.expected_sum
    buffer.write()
    assert words(buffer) == gpu_reader._WRITTEN_WORD.to_bytes(8, "little") * (NUM_BYTES // 8)
    assert buffer.read(reader.variants[-1], 4) == buffer.expected_sum


def test_a_word_that_changed_is_found(reader: gpu_reader.GpuReader) -> None:
    from harness.errors import MeasurementError

    buffer = reader.allocate(NUM_BYTES)
    assert buffer._memory is not None
    buffer._memory[-1] ^= 1
    for variant in reader.variants:
        with pytest.raises(MeasurementError, match="found checksum"):
            pass_s(buffer, (variant, 2))


def test_a_refused_launch_says_why(reader: gpu_reader.GpuReader) -> None:
    buffer = reader.allocate(NUM_BYTES)
    with pytest.raises(UnavailableError, match="a size is outside"):
        buffer.read(reader.variants[0], 0)
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.read(reader.variants[0], 1)


def test_the_probe_surveys_over_it_where_memory_says(reader: gpu_reader.GpuReader) -> None:
    """A pass must be long beside its launch, and no more than a quarter of what is free is taken."""
    place = Place(free_bytes=lambda: 64 << 10, least_buffer_bytes=1 << 20, torch_device="cpu")
    device = HOST.model_copy(update={"last_level_cache_bytes": 128})
    probe = MemoryProbe(ProbeConfig(survey_s=1e-6, reading_s=1e-6), reader, device, place)
    report = probe.survey(None)
    assert (report.method, report.buffer_bytes) == ("verified-read", 16 << 10)
    assert {point.variant for point in report.sweep} == set(reader.variants)
    assert probe.read().pass_bytes == report.buffer_bytes
    probe.close()
    roomy = Place(free_bytes=lambda: 1 << 20, least_buffer_bytes=8 << 10, torch_device="cpu")
    assert MemoryProbe(ProbeConfig(survey_s=1e-6), reader, device, roomy).survey(None).buffer_bytes == 8 << 10


def test_without_the_cards_compiler_there_is_no_probe_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.backends.base import Executor
    from harness.engines.native.machine import open_probe

    monkeypatch.setenv("HIPCC", "/no/such/hipcc")
    card = DeviceInfo(kind="dcu", name="BW1000", arch="gfx936")
    said: list[str] = []
    stream = type("Stream", (), {"device": torch.device("cpu")})()
    assert open_probe(ProbeConfig(), Executor(card, stream=stream), said.append) is None
    assert len(said) == 1 and said[0].startswith("no probe, so no roof: HIPCC")
