"""The rate of matrix products beside a prompt: which products are timed, on a clock of the test's. No speed."""

import math

import pytest
from scripted_reader import ScriptedReader

from harness.probe import matmul, memory
from harness.probe.matmul import DTYPES, Peak, find_peaks, flop_per_s_now
from harness.probe.memory import MemoryProbe
from harness.specs.device import DeviceInfo
from harness.specs.run import ProbeConfig

DEVICE = DeviceInfo(kind="cpu", name="test CPU", num_compute_units=6, last_level_cache_bytes=1 << 20)
RATE = 1e10


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, float]]:
    """(size, type, time asked for) of all products, which take as long as RATE says, every second one half as fast."""
    asked: list[tuple[int, str, float]] = []

    def products_s(size: int, dtype: str, time_s: float, device: str) -> list[float]:
        assert device == "cpu"
        asked.append((size, dtype, time_s))
        one_s = 2 * size**3 / RATE
        count = max(1, math.floor(time_s / one_s))
        return [one_s * (1 + i % 2) for i in range(count)]

    monkeypatch.setattr(matmul, "_products_s", products_s)
    return asked


@pytest.mark.torch
@pytest.mark.parametrize(
    ("time_s", "size"),
    [(0.0, 256), (0.2, 256), (0.22, 512), (1.7, 512), (1.8, 1024), (13.7, 1024), (13.8, 2048), (500.0, 2048)],
)
def test_the_largest_size_of_which_eight_fit_the_time(
    products: list[tuple[int, str, float]], time_s: float, size: int
) -> None:
    """A product of 256 takes 3.4 ms at this rate, one of 512 27 ms, and so on: eight of them are an eighth of that."""
    flop_per_s_now("F32", 1, time_s)
    assert products[-1][:2] == (size, "F32")
    assert products[-1][2] == time_s
    assert all(asked[2] == 0.0 for asked in products[:-1]), "the smaller ones once each, to see how long they take"


@pytest.mark.torch
def test_it_is_the_mean_and_not_the_best(products: list[tuple[int, str, float]]) -> None:
    """Of eight products, four at the rate and four at half of it: two thirds, where the survey's peak is the rate."""
    found = flop_per_s_now("BF16", 1, 8 * 2 * 512**3 / RATE * 1.01)
    assert products[-1][0] == 512
    assert found == pytest.approx(RATE / 1.5)
    assert [peak.flop_per_s for peak in find_peaks(1, 1.0).values()] == pytest.approx(len(DTYPES) * [RATE])


@pytest.mark.torch
@pytest.mark.parametrize("bf16_rate, way", [(1e9, "F32"), (4e10, "BF16")])
def test_a_types_peak_is_that_of_the_fastest_arithmetic_that_holds_its_values(
    monkeypatch: pytest.MonkeyPatch, bf16_rate: float, way: str
) -> None:
    """bf16 and fp16 may be multiplied as fp32, fp32 as neither, and neither as the other."""
    rates = {"BF16": bf16_rate, "F16": 1e12, "F32": RATE}
    monkeypatch.setattr(matmul, "_products_s", lambda size, dtype, *_: [2 * size**3 / rates[dtype]])
    found = find_peaks(1, 1.0)
    assert [found["BF16"].flop_per_s, found["F32"].flop_per_s] == pytest.approx([max(bf16_rate, RATE), RATE])
    assert {name: peak.arithmetic for name, peak in found.items()} == {"BF16": way, "F16": "F16", "F32": "F32"}


@pytest.mark.torch
def test_types_that_are_not_timed_have_no_rate() -> None:
    for dtype in ("F64", "F8", "I8", ""):
        assert flop_per_s_now(dtype, 1, 0.01) is None


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_real_products_have_a_rate_and_torchs_threads_are_given_back(dtype: str) -> None:
    import torch

    before = torch.get_num_threads()
    found = flop_per_s_now(dtype, 1, 0.01)
    assert found is not None and found > 0
    assert torch.get_num_threads() == before


def test_no_rate_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "find_spec", lambda name: None)
    assert flop_per_s_now("F32", 1, 0.01) is None


def test_the_probe_reads_a_peak_on_its_own_threads_in_the_surveys_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, float]] = []

    def rate(dtype: str, num_threads: int, time_s: float, device: str) -> float | None:
        assert device == "cpu"
        asked.append((dtype, num_threads, time_s))
        return 3e12 if dtype == "F32" else None

    monkeypatch.setattr(memory, "flop_per_s_now", rate)
    monkeypatch.setattr(memory, "find_peaks", lambda *_: {"BF16": Peak(4e12, "F32")})
    probe = MemoryProbe(ProbeConfig(survey_s=1e-6), ScriptedReader(num_threads=6), DEVICE)
    assert probe.read_peak("BF16") is None, "before the survey nothing is known"
    report = probe.survey(None)
    assert (report.peak_flop_per_s, report.peak_arithmetic) == ({"BF16": 4e12}, {"BF16": "F32"})
    reading = probe.read_peak("BF16")
    assert reading is not None
    assert (reading.dtype, reading.flop_per_s) == ("BF16", 3e12)
    assert asked == [("F32", 6, memory.PEAK_READING_S)]
    assert probe.read_peak("F8") is None
