"""A plan by hand: Qwen3-0.6B's bytes on an A100's published figures."""

import pytest

from harness.devices.datasheet import load_device_spec
from harness.errors import ConfigError
from harness.models import resolve_model
from harness.plan import make_plan
from harness.specs.device import DeviceSpec, SourcedFigure

MODEL = resolve_model("qwen3-0.6b")
WEIGHTS, POSITION = 1_192_099_840, 114_688  # bytes; worked out in tests/test_traffic.py


def device(**figures: float | None) -> DeviceSpec:
    changes = {name: SourcedFigure(value=value, source=f"{name} of this test") for name, value in figures.items()}
    return load_device_spec("a100").model_copy(update=changes)


def test_floors_and_ridge() -> None:
    plan = make_plan(MODEL, device(), 1000)
    assert plan.step_bytes == WEIGHTS + 2048 + 1001 * POSITION
    assert plan.floor_s == pytest.approx(plan.step_bytes / 2.039e12)
    assert plan.floor_tokens_per_s == pytest.approx(2.039e12 / plan.step_bytes)
    assert plan.compute_floor_s == pytest.approx(plan.step_flop / 3.12e14)
    assert plan.ridge_flop_per_byte == pytest.approx(3.12e14 / 2.039e12)
    assert plan.kv_cache_bytes == 1000 * POSITION


def test_weights_and_cache_must_fit_together() -> None:
    needed = WEIGHTS + 1000 * POSITION
    for memory, fits in ((needed, True), (needed - 1, False), (None, None)):
        assert make_plan(MODEL, device(memory_bytes=memory), 1000).fits_in_memory is fits


def test_a_measured_roof_goes_before_a_published_one() -> None:
    measured = make_plan(MODEL, device(read_probe_bytes_per_s=1.7e12), 1000)
    assert (measured.roof_read_bytes_per_s, measured.roof_source) == (1.7e12, "read_probe_bytes_per_s of this test")
    published = make_plan(MODEL, device(memory_bytes_per_s=2e12), 1000)
    assert (published.roof_read_bytes_per_s, published.roof_source) == (2e12, "memory_bytes_per_s of this test")


def test_the_models_last_position_may_be_planned() -> None:
    assert make_plan(MODEL, device(), 40_960).context == 40_960
    with pytest.raises(ConfigError, match="40960 positions"):
        make_plan(MODEL, device(), 40_961)
