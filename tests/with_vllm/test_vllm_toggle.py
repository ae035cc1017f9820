"""`harness ab run` over two selections of one vLLM: exact counts of each side, and parameters that stay unchanged."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import Fault
from selections import save_table
from tiny_vllm import run_config, vllm_config

from harness.ab.whole_run import run_ab_run
from harness.bench import run_bench
from harness.errors import MeasurementError
from harness.specs.ab_run import AbRunConfig, AbRunRecord
from harness.specs.run import RunConfig

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]

BLOCKS, TOKENS, WARM_UP, LINEARS = 2, 24, 2, 12
REQUESTS = BLOCKS + 1
MANY = 400
"""Of a server, whose tokens come in bursts on a busy machine: there has to be time between the first and the last."""


def num_steps(num_tokens: int) -> int:
    return (num_tokens - 1) * BLOCKS + WARM_UP - 1


def one_row(steps: int) -> int:
    """Products; the prompt's step multiplies one row by the head."""
    return LINEARS * steps + steps + REQUESTS


STEPS = num_steps(TOKENS)
ONE_ROW = one_row(STEPS)
KINDS: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm-server": {
        "kind": "vllm-server", "python": sys.executable, "device": "none", "first_token_limit_s": 120.0,
        "max_model_len": 512,
    },
}  # fmt: skip


def compare(
    model: Path, folder: Path, a: Path | None, b: Path | None, num_tokens: int = TOKENS, **engine: Any
) -> AbRunRecord:  # fmt: skip
    configs = [run_config(model, selection=None if table is None else str(table), **engine) for table in (a, b)]
    for each in configs:
        each["workload"]["output_tokens"] = num_tokens
    sides = [RunConfig.model_validate(config) for config in configs]
    config = AbRunConfig(a=sides[0], b=sides[1], min_blocks=BLOCKS, max_blocks=BLOCKS)
    return run_ab_run(config, folder / "runs", lambda line: None)[1]


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_of_one_vllm_are_counted_and_leave_the_weights_alone(
    kind: str, saved: Callable[..., Path], tmp_path: Path
) -> None:
    model = saved("qwen3", max_position_embeddings=512)
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    tokens = MANY if kind == "vllm-server" else TOKENS
    settings = {"load_format": "auto", "environment": {"HARNESS_CONTEST": "1"}, **KINDS[kind]}
    record = compare(model, tmp_path, None, table, tokens, **settings)
    assert record.agreement is not None and record.agreement.num_same == BLOCKS
    steps = num_steps(tokens)
    off, on = (side.engine for side in record.sides)
    assert off.kind == on.kind == kind
    assert (off.counted_steps, on.counted_steps) == (steps, steps)
    assert off.resolved["selection"] == "off" and off.resolved["selection_calls"] == (
        f"vllm x{one_row(steps) + REQUESTS * LINEARS}"
    )
    assert on.resolved["selection_calls"] == f"cpu-gemv x{one_row(steps)}, vllm x{REQUESTS * LINEARS}"
    assert {row.backend for row in off.ops} == {"vllm"}
    decode = [row for row in on.ops if row.phase == "decode"]
    assert {row.backend for row in decode} == {"cpu-gemv"}
    assert sum(row.num_calls for row in decode) == LINEARS + 1
    assert [side.resolved["selection_parameters"] for side in (off, on)] == [f"{LINEARS + 1} unchanged"] * 2


@pytest.mark.reference
def test_a_side_that_computes_something_else_does_not_agree(
    saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved("qwen3", max_position_embeddings=512)
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    fault = Fault()
    fault.bury(monkeypatch)
    with fault.planted(layer="layers.1.mlp.down", factor=0.0):
        record = compare(model, tmp_path, None, table, load_format="auto")
    assert record.agreement is not None and record.agreement.num_same == 0


def test_workers_in_processes_of_their_own_are_switched_counted_and_asked(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("2 workers on fewer cores")
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", workers=2)
    record = compare(model, tmp_path, None, table, environment={"HARNESS_CONTEST": "1"}, tensor_parallel=2)
    off, on = (side.engine for side in record.sides)
    assert (off.counted_steps, on.counted_steps) == (STEPS, STEPS)
    assert off.resolved["selection_calls"] == f"vllm x{2 * (ONE_ROW + REQUESTS * LINEARS)}"
    assert on.resolved["selection_calls"] == f"cpu-gemv x{2 * ONE_ROW}, vllm x{2 * REQUESTS * LINEARS}"
    assert on.resolved["selection_parameters"] == f"{2 * (LINEARS + 1)} unchanged"


def test_two_tables_share_one_vllm(tmp_path: Path) -> None:
    """And outside a contest nothing is hashed."""
    model = vllm_config(tmp_path, "qwen3")
    tables = [save_table(tmp_path / backend, model, backend) for backend in ("cpu-gemv", "torch")]
    record = compare(model, tmp_path, *tables)
    calls = [str(side.engine.resolved["selection_calls"]) for side in record.sides]
    assert calls == [f"{backend} x{ONE_ROW}, vllm x{REQUESTS * LINEARS}" for backend in ("cpu-gemv", "torch")]
    assert len({side.engine.resolved["selection"] for side in record.sides}) == 2
    assert "selection_parameters" not in record.sides[0].engine.resolved


def test_a_table_of_other_rows_is_never_called(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", rows=(3,))
    with pytest.raises(MeasurementError, match="what b asked for was never called"):
        compare(model, tmp_path, None, table)


def test_a_weight_that_is_written_to_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever computes: here it is the engine's own steps."""
    from harness.vllm_plugin.linears import Linears

    true = Linears.product

    def writing(self: Linears, x: Any, weight: Any, bias: Any) -> Any:
        if "layers.1.mlp.down_proj" in self._by_address[weight.data_ptr()].name:
            weight[0, 0] += 1
        return true(self, x, weight, bias)

    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv")
    config = run_config(model, selection=str(table), environment={"HARNESS_CONTEST": "1"})
    _, record, _ = run_bench(RunConfig.model_validate(config), tmp_path / "runs", lambda line: None)
    assert record.engine is not None and record.engine.resolved["selection_parameters"] == f"{LINEARS + 1} unchanged"
    monkeypatch.setattr(Linears, "product", writing)
    with pytest.raises(MeasurementError, match=r"1 parameters are not .*: model\.layers\.1\.mlp\.down_proj\.weight"):
        run_bench(RunConfig.model_validate(config), tmp_path / "runs", lambda line: None)


def test_compiled_code_serves_both(tmp_path: Path) -> None:
    """The model is run before it is ready, too: those calls are nobody's."""
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv")
    environment = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    record = compare(model, tmp_path, None, table, graph="compiled", environment=environment)
    off, on = (side.engine for side in record.sides)
    assert off.resolved["compilation_mode"] != "NONE"
    assert (off.counted_steps, on.counted_steps) == (STEPS, STEPS)
    assert off.resolved["selection_calls"] == f"vllm x{ONE_ROW + REQUESTS * LINEARS}"
    assert on.resolved["selection_calls"] == f"cpu-gemv x{ONE_ROW}, vllm x{REQUESTS * LINEARS}"
