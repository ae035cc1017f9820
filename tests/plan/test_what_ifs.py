"""One thing changed at a time, and only what the model and the scenario allow."""

import pytest

from harness.devices.datasheet import load_device_spec
from harness.models import ResolvedModel, resolve_model
from harness.plan.row import plan_on_devices
from harness.specs.plan import Plan, Scenario, WhatIf

A100 = load_device_spec("a100")


def plan(name: str = "qwen3-0.6b", model: ResolvedModel | None = None, **scenario: int) -> Plan:
    return plan_on_devices(model or resolve_model(name), Scenario(**scenario), [A100])[0]


def what_ifs(p: Plan) -> dict[str, WhatIf]:
    return {row.what: row for row in p.what_ifs}


def test_each_is_the_plan_of_its_own_scenario() -> None:
    base, rows = plan(context=1000), 0
    for row in base.what_ifs:
        if row.changed != "roof_read_bytes_per_s":
            own = plan(**{"context": 1000, row.changed: int(row.value)})
            assert row.floor_s == own.floor_s
            assert row.floor_ratio == pytest.approx(own.floor_s / base.floor_s)
            assert (row.bound, row.floor_tokens_per_s) == (own.bound, own.floor_tokens_per_s)
            assert (row.fits_in_memory, row.collectives_floor_s) == (own.fits_in_memory, own.collectives_floor_s)
            rows += 1
    assert rows == 9


def test_faster_memory_moves_the_memory_wall_alone() -> None:
    assert what_ifs(plan())["memory 1.5 x as fast"].floor_ratio == pytest.approx(1 / 1.5)
    assert what_ifs(plan(context=1, batch=4096))["memory 1.5 x as fast"].floor_ratio == 1


def test_what_is_so_already_is_not_asked() -> None:
    asked = what_ifs(plan(batch=8, tensor_parallel=2, weight_bits=8, kv_bits=8)).keys()
    assert asked == {
        "weights at 4 bits", "batch 64", "context 2,048", "context 512", "shared by 8 devices", "memory 1.5 x as fast",
    }  # fmt: skip


@pytest.mark.parametrize(("context", "asked"), [(1, {2}), (40_960, {20_480}), (20_480, {40_960, 10_240})])
def test_contexts_stay_within_the_model(context: int, asked: set[int]) -> None:
    assert {row.value for row in plan(context=context).what_ifs if row.changed == "context"} == asked


def test_heads_that_do_not_divide_are_not_asked_for() -> None:
    asked = {row.value for row in plan("smollm2-135m-instruct").what_ifs if row.changed == "tensor_parallel"}
    assert asked == set(), "nine heads"


def test_packed_weights_are_not_asked_to_be_narrower() -> None:
    plain = resolve_model("qwen3-0.6b")
    packed = ResolvedModel("x", plain.spec.model_copy(update={"quantization": "awq"}), None, plain.tensors, "headers")
    asked = {row.changed for row in plan(model=packed).what_ifs}
    assert "weight_bits" not in asked
    assert "kv_bits" in asked
