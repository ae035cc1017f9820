"""A plan by hand: Qwen3-0.6B's bytes on an A100's published figures."""

import pytest

from harness.devices.datasheet import load_device_spec
from harness.errors import ConfigError
from harness.models import ResolvedModel, resolve_model
from harness.plan.row import plan_on_devices
from harness.specs.device import DeviceSpec, SourcedFigure
from harness.specs.plan import Plan, Scenario
from harness.traffic import prefill_flop

MODEL = resolve_model("qwen3-0.6b")
WEIGHTS, POSITION = 1_192_099_840, 114_688  # bytes; worked out in tests/test_traffic.py
ROOF, PEAK = 2.039e12, 3.12e14


def device(**figures: float | None) -> DeviceSpec:
    changes = {name: SourcedFigure(value=value, source=f"{name} of this test") for name, value in figures.items()}
    return load_device_spec("a100").model_copy(update=changes)


def plan(context: int = 1000, on: DeviceSpec | None = None, model: ResolvedModel = MODEL, **scenario: int) -> Plan:
    (found,) = plan_on_devices(model, Scenario(context=context, **scenario), [on or device()])
    return found


def test_floors_and_ridge() -> None:
    p = plan()
    assert p.step_bytes == WEIGHTS + 2048 + 1001 * POSITION
    assert p.floor_s == p.memory_floor_s == pytest.approx(p.step_bytes / ROOF)
    assert p.floor_tokens_per_s == pytest.approx(ROOF / p.step_bytes)
    assert p.compute_floor_s == pytest.approx(p.step_flop / PEAK)
    assert p.bound == "memory"
    assert p.ridge_flop_per_byte == pytest.approx(PEAK / ROOF)
    assert p.step_flop_per_byte == pytest.approx(p.step_flop / p.step_bytes)
    assert p.kv_cache_bytes == 1000 * POSITION
    assert (p.batch, p.tensor_parallel, p.experts_assumption, p.collectives_floor_s) == (1, 1, None, None)


def test_a_batch_reads_the_weights_once() -> None:
    p = plan(10, batch=256)
    assert p.step_bytes == WEIGHTS + 256 * (2048 + 11 * POSITION)
    assert p.kv_cache_bytes == 256 * 10 * POSITION
    assert p.memory_floor_s == pytest.approx(p.step_bytes / ROOF)
    assert p.compute_floor_s == pytest.approx(256 * plan(10).step_flop / PEAK)
    assert (p.bound, p.floor_s) == ("compute", p.compute_floor_s), "256 is past this device's ridge of 153"
    assert p.floor_tokens_per_s == pytest.approx(256 / p.floor_s)


def test_a_prompts_floor_is_arithmetic_or_the_weights() -> None:
    long, short = plan(input_tokens=2000), plan(input_tokens=2)
    assert (long.ttft_bound, long.input_tokens) == ("compute", 2000)
    assert long.ttft_floor_s == pytest.approx(prefill_flop(MODEL.spec, 2000) / PEAK)
    assert short.ttft_bound == "memory"
    assert short.ttft_floor_s == pytest.approx(WEIGHTS / ROOF)
    assert plan(2000).ttft_floor_s == long.ttft_floor_s, "the context where no prompt is given"


def test_what_a_peak_would_say_is_null_where_nobody_publishes_one() -> None:
    p = plan(on=device().model_copy(update={"peak_flop_per_s": {}}))
    assert (p.bound, p.compute_floor_s, p.ridge_flop_per_byte, p.peak_source) == (None, None, None, None)
    assert (p.ttft_floor_s, p.ttft_bound) == (None, None)
    assert p.floor_s == pytest.approx(p.step_bytes / ROOF)
    assert (p.largest_batch_memory_bound, p.largest_batch_memory_bound_reason) == (None, "the peak is not known")


def test_weights_and_caches_must_fit_together() -> None:
    needed = WEIGHTS + 3 * 1000 * POSITION
    for memory, fits, largest in ((needed, True, 3), (needed - 1, False, 2), (WEIGHTS - 1, False, 0), (None,) * 3):
        p = plan(on=device(memory_bytes=memory), batch=3)
        assert (p.fits_in_memory, p.largest_batch_in_memory) == (fits, largest)


def test_state_takes_memory_too() -> None:
    model = resolve_model("qwen3.5-27b")
    needed = 53_791_996_928 + 2 * (10 * 65_536 + 153_944_064)
    for memory, fits in ((needed, True), (needed - 1, False)):
        assert plan(10, on=device(memory_bytes=memory), model=model, batch=2).fits_in_memory is fits


def test_a_measured_roof_goes_before_a_published_one() -> None:
    measured = plan(on=device(read_probe_bytes_per_s=1.7e12))
    assert (measured.roof_read_bytes_per_s, measured.roof_source) == (1.7e12, "read_probe_bytes_per_s of this test")
    published = plan(on=device(memory_bytes_per_s=2e12))
    assert (published.roof_read_bytes_per_s, published.roof_source) == (2e12, "memory_bytes_per_s of this test")


def test_the_models_last_position_may_be_planned() -> None:
    assert plan(40_960).context == 40_960
    with pytest.raises(ConfigError, match="context 40961 passes the model's 40960 positions"):
        plan(40_961)
    with pytest.raises(ConfigError, match="a prompt of 40961 passes"):
        plan(input_tokens=40_961)


def test_narrower_weights_and_caches() -> None:
    """Norms are vectors and stay: 28 x (2 x 1024 + 2 x 128) + 1024 values of 2 bytes."""
    vectors = 2 * (28 * (2 * 1024 + 2 * 128) + 1024)
    matrices = WEIGHTS - vectors
    for bits in (8, 4):
        p = plan(weight_bits=bits)
        assert p.weight_read_bytes == matrices * bits // 16 + vectors
        assert p.embedding_row_bytes == 2048 * bits // 16
        assert p.kv_bytes_per_context_token == POSITION
        assert p.step_flop == plan().step_flop
        assert plan(kv_bits=bits).kv_bytes_per_context_token == POSITION * bits // 16
    assert plan(kv_bits=8).weight_read_bytes == WEIGHTS


def test_a_window_of_a_narrower_cache_is_narrower_too() -> None:
    model = resolve_model("mistral-7b-v0.1")
    whole, half = plan(8192, model=model), plan(8192, model=model, kv_bits=8)
    assert whole.kv_cache_bytes == 4096 * 131_072 == 2 * half.kv_cache_bytes


def test_devices_come_in_their_order() -> None:
    plans = plan_on_devices(MODEL, Scenario(), [load_device_spec(name) for name in ("h100", "a100", "bw-gfx936")])
    assert [p.device for p in plans] == ["h100", "a100", "bw-gfx936"]
    assert plans[0].floor_s < plans[1].floor_s < plans[2].floor_s
