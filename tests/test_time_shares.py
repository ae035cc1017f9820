"""Where a whole request's time goes: parts that add up, the largest first."""

from pathlib import Path
from typing import Any

import pytest

from harness.bench import run_bench
from harness.models import resolve_model
from harness.prefill import time_shares
from harness.specs.analysis import Analysis, TimeShare
from harness.specs.engine import Evidence, LaunchClass
from harness.specs.run import RunConfig
from harness.traffic import prompt_flop

QWEN = resolve_model("qwen3-0.6b").spec


def made(tmp_path: Path, **engine: Any) -> Analysis:
    """A run of the scripted engine."""
    config = {
        "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "scripted", **engine},
        "workload": {"input_tokens": 400, "output_tokens": 40, "repeats": 3},
    }  # fmt: skip
    _, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    assert record.analysis is not None
    return record.analysis


def shares(
    evidence: Evidence | None, prefill: float | None = 0.25, decode: float | None = 0.75
) -> dict[str, TimeShare]:
    found = time_shares(QWEN, 400, prefill, decode, evidence)
    assert [share.time_frac for share in found] == sorted((share.time_frac for share in found), reverse=True)
    return {share.part: share for share in found}


def test_shares_of_a_request_add_up_and_the_largest_comes_first() -> None:
    parts = (
        LaunchClass(name="linear", step_s=0.5, read_bytes=1),
        LaunchClass(name="attention", step_s=0.25, read_bytes=1),
        LaunchClass(name="sampling", step_s=0.0, read_bytes=0),
    )
    found = shares(Evidence(num_steps=4, step_s=1.0, outside_kernels_s=0.25, classes=parts))
    flop = prompt_flop(QWEN, 400)
    assert {part: share.time_frac for part, share in found.items()} == pytest.approx(
        {
            "decode linear": 0.375, "decode attention": 0.1875, "decode outside kernels": 0.1875,
            "prefill linear": 0.25 * flop.linear / sum(flop), "prefill attention": 0.25 * flop.attention / sum(flop),
        }
    )  # fmt: skip
    assert sum(share.time_frac for share in found.values()) == pytest.approx(1.0)
    assert {share.by for part, share in found.items() if part.startswith("decode")} == {"clock"}
    assert {share.by for part, share in found.items() if part.startswith("prefill")} == {"FLOP"}


def test_without_evidence_a_decode_is_one_part() -> None:
    assert shares(None)["decode"].time_frac == shares(Evidence())["decode"].time_frac == 0.75
    assert set(shares(None, prefill=None, decode=1.0)) == {"decode"}
    assert set(shares(None, prefill=1.0, decode=0.0)) == {"prefill linear", "prefill attention"}


def test_the_shares_of_a_run_are_its_fractions(tmp_path: Path) -> None:
    """With 10 ms outside kernels in each step, which the script's instrumented pass sees."""
    found = made(tmp_path, gap_s=0.01)
    by_phase = {"prefill": 0.0, "decode": 0.0}
    for share in found.time_shares:
        by_phase[share.part.split()[0]] += share.time_frac
    assert by_phase == pytest.approx({"prefill": found.prefill_time_frac, "decode": found.decode_time_frac})
    assert {share.part for share in found.time_shares} == {
        "prefill linear", "prefill attention", "decode linear", "decode attention", "decode outside kernels",
    }  # fmt: skip
    assert found.time_shares[0].part == "decode linear"
