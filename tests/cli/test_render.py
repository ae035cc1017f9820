"""Rows as people and as programs read them."""

from typing import Any

import pytest

from harness.cli.ab_lines import ab_table, not_here_lines, worth_lines
from harness.cli.options import Format
from harness.cli.render import show
from harness.specs.ab import AbRow
from harness.specs.problem import LinearProblem


def test_a_whole_number_stays_one_beside_a_null(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"id": "a", "value": None}, {"id": "b", "value": 1}], Format.csv)
    assert capsys.readouterr().out == "id,value\na,\nb,1\n"


@pytest.mark.parametrize("format", list(Format))
def test_null_is_never_the_word_none(capsys: pytest.CaptureFixture[str], format: Format) -> None:
    show([{"id": "a", "value": None}, {"id": "b", "value": 1}], format)
    assert "None" not in capsys.readouterr().out


def test_markdown_cells_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """An id such as 1e5 is no number."""
    show([{"id": "1e5", "layers": [1, 2]}], Format.md)
    assert "| 1e5  | [1, 2]   |" in capsys.readouterr().out


def row(**changes: Any) -> AbRow:
    return AbRow.model_validate(
        {
            "role": "o", "shape": "1x8x8", "problem": LinearProblem(m=1, n=8, k=8, dtype="BF16"), "calls_per_token": 28,
            "unfused_calls_per_token": 28,            "backend": "x", "status": "ok", "contest_legal": True, **changes,
        }
    )  # fmt: skip


def test_an_ab_row_for_people() -> None:
    timed = row(
        call_s=1e-3, bytes_per_s=25e9, probe_frac=0.9, ratio_to_baseline=1.5, ratio_interval=(1.4, 1.6),
        outcome="winner",
    )  # fmt: skip
    (found,) = ab_table([timed])
    assert found["GB/s"] == "25.0"
    assert found["of probe"] == "90.0 %"
    assert found["times the baseline"] == "1.50 [1.40, 1.60]"
    assert found["outcome"] == "winner"
    (noted,) = ab_table([timed.model_copy(update={"note": "kernel 7"})])
    assert noted["outcome"] == "winner (kernel 7)"


def test_an_unstable_comparison_says_no_microseconds() -> None:
    """What a winner is worth is a difference of times, which neighbours on the cores can double."""
    again = {"call_s": 1e-3, "baseline_call_s": 3e-3, "ratio_to_baseline": 3.0, "ratio_interval": (2.9, 3.1)}
    rows = [row(outcome="winner", confirmed={**again, "num_pairs": 8, "call_gain_s": 2e-3})]
    assert [found["us a token"] for found in ab_table(rows)] == ["56000"]
    lost = row(outcome="winner", confirmed={**again, "ratio_interval": (0.9, 3.1), "num_pairs": 8, "call_gain_s": 2e-3})
    assert [found["us a token"] for found in ab_table([*rows, lost], unstable=True)] == ["-", "did not win again"]
    won = "winners, measured once more: 1 of 1 win again"
    worth = "worth at batch 1: 56000 us a step with fused products, 56000 us without"
    assert (worth_lines(rows, unstable=False), worth_lines(rows, unstable=True)) == ([won, worth], [won])


def test_what_can_not_be_had_here_is_told_once_and_not_in_every_row() -> None:
    absent = [
        row(backend="gpu", status="unsupported", shape=shape, why=why)
        for shape, why in (("1x8x8", "no card"), ("1x9x9", "no card"), ("9x9x9", "9 rows"))
    ]
    rows = [row(backend="cpu"), *absent, row(backend="odd", status="unsupported", why="odd")]
    assert [found["backend"] for found in ab_table(rows)] == ["cpu"]
    assert not_here_lines(rows) == ["not here  gpu: no card; 9 rows", "not here  odd: odd"]


def test_an_ab_row_that_was_not_timed_says_why() -> None:
    (found,) = ab_table([row(status="incorrect", why="n is 1")])
    assert found["outcome"] == "incorrect: n is 1"
    assert {found["GB/s"], found["of probe"], found["times the baseline"]} == {"-"}


def test_a_row_stays_a_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"shape": "1x1024x1024", "parameters": "p" * 300, "ratio": "1.00"}], Format.table)
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["1x1024x1024", "p" * 300, "1.00"]
