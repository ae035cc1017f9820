"""A winner is measured once more on fresh operands: what happens where it, or the baseline, does not last."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.ab.compare import Comparison, run_ab  # noqa: E402
from harness.ab.sampler import Sampler  # noqa: E402
from harness.backends.base import Support  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.specs.ab import AbConfig, AbRow  # noqa: E402
from harness.specs.selection import entries_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


last_call_s = [0.0]
"""What the clock says of the last call: no outcome here is to hang on the machine."""


def right(x: Any, w: Any, b: Any, out: Any) -> None:
    out.copy_(torch.nn.functional.linear(x, w, b))
    last_call_s[0] = 1e-3


def slow(x: Any, w: Any, b: Any, out: Any) -> None:
    right(x, w, b, out)
    last_call_s[0] = 2e-3


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(self: Any, launches: Any, uses_pool: bool) -> float:
        for launch in launches:
            launch()
        return last_call_s[0] * (len(launches) - 1)

    monkeypatch.setattr(Sampler, "seconds", seconds)


def writes_nan(x: Any, w: Any, b: Any, out: Any) -> None:
    out.fill_(float("nan"))


def raises(x: Any, w: Any, b: Any, out: Any) -> None:
    raise RuntimeError("worn out")


def changes_a_weight(x: Any, w: Any, b: Any, out: Any) -> None:
    right(x, w, b, out)
    w[0, 0] += 1


def rows_of(model: Path, runs: Path, *backends: str, **settings: Any) -> tuple[AbRow, ...]:
    rounds = {"min_blocks": 4, "max_blocks": 4, "sample_s": 1e-5, "threads": 1}
    config = AbConfig.model_validate({"model": str(model), "backends": backends, **rounds, **settings})
    return run_ab(config, runs, lambda line: None)[1].rows


@pytest.fixture
def confirming(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Not empty while winners are measured once more."""
    now: list[bool] = []
    confirmed = Comparison.confirmed

    def watched(self: Any, *arguments: Any) -> AbRow:
        now.append(True)
        try:
            return confirmed(self, *arguments)
        finally:
            now.clear()

    monkeypatch.setattr(Comparison, "confirmed", watched)
    return now


@pytest.mark.parametrize(
    ("worn", "status", "why"),
    [
        (writes_nan, "incorrect", "first at"),
        (raises, "failed", "worn out"),
        (changes_a_weight, "changes-operands", "wei"),
    ],
)
def test_a_winner_that_is_refused_then_is_none_and_its_place_is_the_baselines(
    model: Path, tmp_path: Path, plant: Any, confirming: list[bool], worn: Any, status: str, why: str
) -> None:
    plant("slow", slow)
    plant("wearing", lambda *operands: (worn if confirming else right)(*operands))
    rows = rows_of(model, tmp_path, "wearing", baseline="slow")
    wearing = [row for row in rows if row.backend == "wearing"]
    assert {(row.status, row.outcome, row.call_s, row.confirmed) for row in wearing} == {(status, "-", None, None)}
    assert all(row.why.startswith("measured once more: ") and why in row.why for row in wearing)
    entries = entries_of(rows, "a-run", "slow")
    assert {(entry.backend, entry.evidence.outcome) for entry in entries} == {("slow", "baseline")}


def test_a_winner_whose_baseline_fails_then_says_so(
    model: Path, tmp_path: Path, plant: Any, confirming: list[bool]
) -> None:  # fmt: skip
    plant("slow", lambda *operands: (raises if confirming else slow)(*operands))
    plant("right", right)
    winners = [row for row in rows_of(model, tmp_path, "right", baseline="slow") if row.backend == "right"]
    assert {(row.status, row.outcome, row.confirmed) for row in winners} == {("ok", "winner", None)}
    assert all(row.why == "not measured once more beside slow: failed: RuntimeError: worn out" for row in winners)


def test_a_baseline_that_has_some_problems_only(model: Path, tmp_path: Path, plant: Any) -> None:
    """The others' winners stand beside those that were timed, and say why they were not measured once more."""
    one = staticmethod(
        lambda problem, device: Support.yes() if problem.m == 1 else Support.no("one row at a time", "take one")
    )
    plant("single", slow, supports=one)
    plant("slow", slow)
    plant("right", right)
    rows = rows_of(model, tmp_path, "right", "slow", baseline="single", batches=(1, 2))
    winners = {m: [row for row in rows if row.backend == "right" and row.problem.m == m] for m in (1, 2)}
    assert all(row.confirmed is not None and row.why == "" for row in winners[1])
    assert {(row.outcome, row.confirmed) for row in winners[2]} == {("winner", None)}
    assert all("beside single: unsupported: one row at a time" in row.why for row in winners[2])


def test_a_baseline_that_has_none_of_the_problems_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the baseline torch-mv has none of these problems"):
        rows_of(model, tmp_path / "runs", baseline="torch-mv", batches=(4,))
    assert not (tmp_path / "runs").exists()
