"""What the probe decides: buffer sizes, candidates, what readings are taken of, the baseline."""

import json
from pathlib import Path

import pytest
from scripted_reader import ScriptedReader

from harness.errors import ConfigError, UnavailableError
from harness.probe.base import Probe
from harness.probe.matmul import Peak
from harness.probe.memory import MemoryProbe, open_cpu_probe
from harness.probe.pages import Pages, huge_bytes
from harness.specs.device import DeviceInfo
from harness.specs.run import ProbeConfig

CACHE = 1 << 20
QUICK = ProbeConfig(survey_s=1e-6, reading_s=1e-6)


def device(cache: int | None = CACHE, name: str = "test CPU") -> DeviceInfo:
    return DeviceInfo(kind="cpu", name=name, num_compute_units=6, last_level_cache_bytes=cache)


@pytest.fixture(autouse=True)
def _no_products(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr(
        "harness.probe.memory.find_peaks", lambda num_threads, time_s, device: {"F32": Peak(1.0, "F32")}
    )


def with_memory(monkeypatch: pytest.MonkeyPatch, available: int | None) -> None:
    monkeypatch.setattr("harness.probe.memory.available_memory_bytes", lambda: available)


def surveyed_buffer_bytes(cache: int | None, config: ProbeConfig = QUICK) -> int:
    return MemoryProbe(config, ScriptedReader(), device(cache)).survey(None).buffer_bytes


def test_the_buffer_is_four_caches_as_far_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 64 * CACHE)
    assert surveyed_buffer_bytes(CACHE) == 4 * CACHE
    with_memory(monkeypatch, 8 * CACHE)
    assert surveyed_buffer_bytes(CACHE) == 2 * CACHE
    with_memory(monkeypatch, 1 << 40)
    assert surveyed_buffer_bytes(None) == 1 << 30


def test_a_configured_buffer_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, CACHE)
    assert surveyed_buffer_bytes(CACHE, ProbeConfig(buffer_bytes=1000, survey_s=1e-6)) == 896, "whole lines"
    with pytest.raises(ConfigError, match="buffer_bytes"):
        surveyed_buffer_bytes(CACHE, ProbeConfig(buffer_bytes=CACHE + 1, survey_s=1e-6))


def test_the_survey_compares_every_variant_and_thread_count() -> None:
    reader = ScriptedReader(num_threads=6)
    report = MemoryProbe(QUICK, reader, device()).survey(None)
    assert [(point.variant, point.num_threads) for point in report.sweep] == [("one", 6), ("two", 6)]
    assert [point.num_threads for point in report.thread_curve] == [1, 2, 4, 6]
    assert len({point.variant for point in report.thread_curve}) == 1
    assert report.variant.endswith(f"threads={report.num_threads}")
    assert report.peak_flop_per_s == {"F32": 1.0}
    assert not reader.is_open


@pytest.mark.parametrize(
    ("caches", "is_read"), [(0.5, False), (1.0, True), (2.5, True), (3.99, True), (4.0, False), (9.0, False)]
)
def test_readings_are_of_a_partly_cached_working_set(caches: float, is_read: bool) -> None:
    reader = ScriptedReader()
    probe: Probe = MemoryProbe(QUICK, reader, device())
    working_set_bytes = int(caches * CACHE)
    report = probe.survey(working_set_bytes)
    expected = working_set_bytes // 128 * 128 if is_read else report.buffer_bytes
    assert report.reading_buffer_bytes == expected
    assert (report.working_set_read_bytes_per_s is not None) == is_read
    assert [buffer.closed for buffer in reader.buffers] == ([True, False] if is_read else [False])
    reader.passes.clear()
    reading = probe.read()
    assert reading.pass_bytes == expected
    assert len(reading.passes_s) == len(reader.passes) - 1, "one untimed pass goes first"
    assert reading.variant == report.variant
    probe.close()
    assert all(buffer.closed for buffer in reader.buffers)


def test_a_working_set_beyond_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 8 * CACHE)
    report = MemoryProbe(QUICK, ScriptedReader(), device()).survey(3 * CACHE)
    assert report.reading_buffer_bytes == report.buffer_bytes == 2 * CACHE


def test_readings_are_of_random_words() -> None:
    reader = ScriptedReader()
    MemoryProbe(QUICK, reader, device()).survey(None)
    assert reader.buffers[-1].history == ["copy", "write", "fill"]


def test_read_needs_a_survey() -> None:
    with pytest.raises(ValueError, match="survey"):
        MemoryProbe(QUICK, ScriptedReader(), device()).read()


def baseline_files(cache_folder: Path) -> list[Path]:
    return sorted((cache_folder / "baselines").glob("*"))


def test_the_first_survey_is_the_baseline(empty_cache: Path) -> None:
    first = MemoryProbe(QUICK, ScriptedReader(), device()).survey(None)
    assert first.baseline_read_bytes_per_s == first.read_bytes_per_s
    (path,) = baseline_files(empty_cache)
    stored = json.loads(path.read_text())
    assert stored["read_bytes_per_s"] == first.read_bytes_per_s
    path.write_text(json.dumps(stored | {"read_bytes_per_s": 123.0}))
    assert MemoryProbe(QUICK, ScriptedReader(), device()).survey(None).baseline_read_bytes_per_s == 123.0
    MemoryProbe(QUICK, ScriptedReader(), device(name="another CPU")).survey(None)
    MemoryProbe(QUICK, ScriptedReader(num_threads=3), device()).survey(None)
    assert len(baseline_files(empty_cache)) == 3


def test_a_small_buffer_is_no_baseline(empty_cache: Path) -> None:
    config = ProbeConfig(buffer_bytes=CACHE, survey_s=1e-6)
    assert MemoryProbe(config, ScriptedReader(), device()).survey(None).baseline_read_bytes_per_s is None
    assert baseline_files(empty_cache) == []


@pytest.mark.parametrize("text", ["", "[]", '{"read_bytes_per_s": null}', "{}"])
def test_a_damaged_baseline_is_named(empty_cache: Path, text: str) -> None:
    MemoryProbe(QUICK, ScriptedReader(), device()).survey(None)
    (path,) = baseline_files(empty_cache)
    path.write_text(text)
    with pytest.raises(ConfigError, match="no baseline") as raised:
        MemoryProbe(QUICK, ScriptedReader(), device()).survey(None)
    assert str(path) in raised.value.what


def test_a_baseline_that_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="can't be written"):
        MemoryProbe(QUICK, ScriptedReader(), device()).survey(None)


def test_neither_compiler_nor_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.probe.torch_reader.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="neither") as raised:
        open_cpu_probe(QUICK, None, device())
    assert "install g++" in raised.value.mend


SMAPS = """\
10000-20000 rw-p 00000000 00:00 0
AnonHugePages:      64 kB
20000-30000 rw-p 00000000 00:00 0
Size:               64 kB
AnonHugePages:      32 kB
30000-40000 rw-p 00000000 00:00 0
AnonHugePages:       4 kB
"""


def test_huge_pages_of_our_mappings_only() -> None:
    assert huge_bytes(SMAPS, 0x20000, 0x30000) == 32 << 10
    assert huge_bytes(SMAPS, 0x1F000, 0x21000) == 96 << 10
    assert huge_bytes(SMAPS, 0x50000, 0x60000) == 0


def test_more_pages_than_there_are() -> None:
    with pytest.raises(UnavailableError, match="memory for the probe"):
        Pages(1 << 60)
