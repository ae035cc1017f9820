"""What a comparison poses of a mixture of experts: those that one token goes through, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_ab import HF

from harness.ab.shapes import Calls, cases, left_out, linear_cases
from harness.models import resolve_model
from harness.specs.ab import AbConfig
from harness.specs.model import ModelSpec

EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "head_dim": 16},
}


def spec_of(family: str, tmp_path: Path) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HF | EXPERTS[family] | {"model_type": family}))
    return resolve_model(str(path)).spec


@pytest.mark.parametrize(
    ("family", "gate_and_up", "both", "down"),
    [("mixtral", "w1/w3", "w1_w3", "w2"), ("qwen3_moe", "gate/up", "gate_up", "down")],
)
def test_the_experts_of_a_token_fused_and_apart(
    family: str, gate_and_up: str, both: str, down: str, tmp_path: Path
) -> None:
    """Two layers, two of four experts a token, 64 wide with 96 between: gate and up 2 x 2 each, or one product of both
    2 x 2; down 2 x 2. Heads: 4 and 2 of 16. The router is no expert."""
    found = {(case.label, case.role): case.calls for case in linear_cases(spec_of(family, tmp_path), [1])}
    assert found == {
        ("1x64x64", "q/o"): Calls(fused=2, unfused=4),
        ("1x32x64", "k/v"): Calls(fused=0, unfused=4),
        ("1x128x64", "qkv"): Calls(fused=2, unfused=0),
        ("1x4x64", "gate"): Calls(fused=2, unfused=2),
        ("1x96x64", gate_and_up): Calls(fused=0, unfused=8),
        ("1x192x64", both): Calls(fused=4, unfused=0),
        ("1x64x96", down): Calls(fused=4, unfused=4),
        ("1x131x64", "lm_head"): Calls(1, 1),
    }


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "qwen3-next-80b-a3b"])
def test_fused_and_apart_read_the_same_weights(name: str) -> None:
    found = linear_cases(resolve_model(name).spec, [1])
    fused, apart = (
        sum(calls * case.problem.n * case.problem.k for calls, case in zip(counts, found, strict=True))
        for counts in ([case.calls.fused for case in found], [case.calls.unfused for case in found])
    )
    assert fused == apart


@pytest.mark.parametrize("family", EXPERTS)
def test_of_more_rows_nobody_knows_how_many_an_expert_gets(family: str, tmp_path: Path) -> None:
    """Four rows at two experts each may run every expert on two rows: four calls of four rows are no part of a step."""
    spec, asked = spec_of(family, tmp_path), {"model": "m", "batches": (1, 4)}
    config = AbConfig.model_validate(asked)
    roles = {(case.problem.m, case.role) for case in cases(spec, config)}
    assert {role for m, role in roles if m == 4} == {"q/o", "k/v", "qkv", "gate", "lm_head"}
    (why,) = left_out(spec, config)
    assert "experts' products are compared at batch 1 alone" in why
    assert left_out(spec, AbConfig(model="m")) == ()
    assert left_out(spec, AbConfig.model_validate(asked | {"op": "attention"})) == ()


def test_what_is_left_out_stands_below_the_table(tmp_path: Path, small: None) -> None:
    from typer.testing import CliRunner

    from harness.cli.main import app

    spec_of("mixtral", tmp_path)
    runs = ["--runs-dir", str(tmp_path / "runs")]
    asked = ["--batch", "2", "--backend", "torch", "--device", "cpu", "--max-blocks", "8"]
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(tmp_path / "config.json"), *asked, *runs])
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(app, ["runs", "show", "ab-linear", *runs])
    for text in (result.stdout, shown.stdout):
        assert "\nleft out  experts' products are compared at batch 1 alone" in text
        assert "w1" not in text
