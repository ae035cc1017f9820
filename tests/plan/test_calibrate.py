"""A run of known truth calibrates a plan, and the plan foretells another run of the same machine."""

from pathlib import Path
from typing import Any

import pytest

from harness.bench import run_bench
from harness.errors import ConfigError, MeasurementError
from harness.models import resolve_model
from harness.plan.row import plan_from_run
from harness.specs.plan import Scenario
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig

MODEL = resolve_model("qwen3-0.6b")


def run(folder: Path, input_tokens: int = 64, model: str = "qwen3-0.6b", **engine: Any) -> RunRecord:
    config = RunConfig.model_validate(
        {
            "name": "t", "model": model, "engine": {"kind": "scripted", "util_frac": 0.8, **engine},
            "workload": {"input_tokens": input_tokens, "output_tokens": 65, "repeats": 2},
        }
    )  # fmt: skip
    return run_bench(config, folder, lambda line: None)[1]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return run(tmp_path_factory.mktemp("runs"))


def test_walls_and_utilization_are_the_runs(record: RunRecord) -> None:
    plan = plan_from_run(MODEL, Scenario(context=64 + 32), record)
    assert record.analysis is not None and plan.calibration is not None
    assert (plan.device, plan.roof_read_bytes_per_s) == ("scripted", record.analysis.roof_read_bytes_per_s)
    assert plan.peak_flop_per_s == 1e12
    assert (plan.roof_unverified, plan.link_bytes_per_s) == (False, None)
    run_of_plan = plan.calibration
    assert (run_of_plan.run_id, run_of_plan.verdict) == (record.run_id, "approaching")
    assert run_of_plan.util_frac == pytest.approx(0.8)
    assert plan.predicted_tpot_s == pytest.approx(plan.floor_s / 0.8)
    assert plan.predicted_tpot_s == pytest.approx(record.analysis.tpot_s, rel=0.01)


@pytest.mark.parametrize("input_tokens", [512, 4096])
def test_another_context_is_foretold(record: RunRecord, tmp_path: Path, input_tokens: int) -> None:
    """The middle of the answer stands for it: bytes grow by the same with each position."""
    measured = run(tmp_path, input_tokens).analysis
    assert measured is not None and measured.tpot_s is not None
    scenario = Scenario(context=input_tokens + 32, input_tokens=input_tokens)
    plan = plan_from_run(MODEL, scenario, record)
    assert plan.predicted_tpot_s == pytest.approx(measured.tpot_s, rel=0.01)
    assert plan.predicted_ttft_s == pytest.approx(measured.ttft_s, rel=0.01)


def test_what_ifs_are_foretold_too(record: RunRecord) -> None:
    rows = {row.what: row for row in plan_from_run(MODEL, Scenario(), record).what_ifs}
    longer = plan_from_run(MODEL, Scenario(context=2048), record)
    assert rows["context 2,048"].predicted_tpot_s == longer.predicted_tpot_s
    assert rows["memory 1.5 x as fast"].predicted_tpot_s == pytest.approx(rows["memory 1.5 x as fast"].floor_s / 0.8)


def test_a_large_batch_is_foretold_by_the_compute_wall(record: RunRecord) -> None:
    plan = plan_from_run(MODEL, Scenario(context=1, batch=4096), record)
    assert plan.compute_floor_s is not None and plan.calibration is not None
    assert plan.calibration.prefill_mfu_frac is not None
    assert plan.predicted_tpot_s == pytest.approx(plan.compute_floor_s / plan.calibration.prefill_mfu_frac)


def test_without_a_prompts_mfu_no_first_token_is_foretold(record: RunRecord) -> None:
    assert record.analysis is not None
    analysis = record.analysis.model_copy(update={"prefill_mfu_frac": None})
    plan = plan_from_run(MODEL, Scenario(), record.model_copy(update={"analysis": analysis}))
    assert plan.predicted_ttft_s is None
    assert plan.predicted_tpot_s == pytest.approx(plan.floor_s / 0.8)


def test_another_model_or_type_is_refused(record: RunRecord) -> None:
    with pytest.raises(ConfigError, match=r"is of qwen3-0.6b in BF16, not of qwen3-1.7b in BF16"):
        plan_from_run(resolve_model("qwen3-1.7b"), Scenario(), record)
    assert record.analysis is not None
    analysis = record.analysis.model_copy(update={"precision": "F32"})
    with pytest.raises(ConfigError, match=r"in F32, not of qwen3-0.6b in BF16"):
        plan_from_run(MODEL, Scenario(), record.model_copy(update={"analysis": analysis}))


def test_what_can_not_be_believed_is_refused(tmp_path: Path, record: RunRecord) -> None:
    with pytest.raises(MeasurementError, match="is invalid: "):
        plan_from_run(MODEL, Scenario(), run(tmp_path, util_frac=1.3))
    with pytest.raises(ConfigError, match="is interrupted and has no figures"):
        ended = record.model_copy(update={"analysis": None, "status": "interrupted"})
        plan_from_run(MODEL, Scenario(), ended)
