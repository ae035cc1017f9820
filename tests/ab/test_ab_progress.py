"""What a comparison says while it runs: to a terminal what begins, to a file or a pipe a line for what is done."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from typer.testing import CliRunner

from harness.ab.compare import run_ab
from harness.cli.ab_lines import precision_lines
from harness.cli.main import app
from harness.cli.options import tell, tell_finished
from harness.records import load_record, silent
from harness.specs.ab import AbConfig

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_hears_what_begins_and_a_log_what_is_done(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    tell("q: 1x64x64")
    tell_finished("1 of 7 problems done")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == (["q: 1x64x64"] if is_terminal else ["1 of 7 problems done"])
    assert shown.out == ""


def test_off_a_terminal_each_problem_that_is_done_is_a_line(model: Path, tmp_path: Path) -> None:
    asked = ["--contexts", "5,40", "--chunks", "1", "--backend", "torch-sdpa", "--device", "cpu", "--precision", "1"]
    arguments = ["ab", "attention", "--model", str(model), "--runs-dir", str(tmp_path / "runs"), "--format", "json"]
    result = CliRunner().invoke(app, [*arguments, *asked])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        "1 of 2 problems done: decode: 1 of 5, 4/2x16",
        "2 of 2 problems done: decode: 1 of 40, 4/2x16",
    ]
    assert len(json.loads(result.stdout)["rows"]) == 2, "nothing but the result"


def test_off_a_terminal_each_round_of_whole_requests_that_is_done_is_a_line(tmp_path: Path) -> None:
    scripted: dict[str, Any] = {
        "name": "rounds", "model": "qwen3-0.6b", "workload": {"input_tokens": 8, "output_tokens": 20},
    }  # fmt: skip
    paths = []
    for name, util_frac in (("a", 0.8), ("b", 0.6)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(scripted | {"engine": {"kind": "scripted", "util_frac": util_frac}}))
        paths.append(str(path))
    rounds = ["--blocks", "2", "--max-blocks", "2", "--runs-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["ab", "run", *paths, *rounds])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == ["1 of 2 rounds at most done", "2 of 2 rounds at most done"]


def test_a_precision_that_was_missed_is_said_and_recorded(model: Path, tmp_path: Path) -> None:
    """By the comparison and by its record later; one that was reached is not."""
    runs = ["--runs-dir", str(tmp_path / "runs")]
    asked = ["--contexts", "5,40", "--chunks", "1", "--backend", "cpu-decode", "--device", "cpu", "--max-blocks", "8"]
    arguments = ["ab", "attention", "--model", str(model), *asked, *runs]
    missed = CliRunner().invoke(app, [*arguments, "--precision", "0.0001"])
    assert missed.exit_code == 0, missed.output
    line = "precision  2 of 2 problems stopped at 8 rounds, before 0.01 % was reached: --max-blocks, --precision"
    assert line in missed.stdout.splitlines()
    folder = next(Path(line.split()[1]) for line in missed.stdout.splitlines() if line.startswith("record"))
    rows = {(row.backend, row.precision_reached) for row in load_record(folder).rows if row.status == "ok"}
    assert rows == {("cpu-decode", False), ("torch-sdpa", True)}, "of the baseline the ratio is known"
    shown = CliRunner().invoke(app, ["runs", "show", folder.name, *runs]).stdout
    assert line in shown.splitlines() and shown.count("precision not reached") == 2
    wide = {"op": "attention", "contexts": (5,), "chunks": (1,), "precision": 1e9, "min_blocks": 2, "sample_s": 1e-5}
    config = AbConfig.model_validate({"model": str(model), "backends": ("cpu-decode",), "device": "cpu", **wide})
    _, reached = run_ab(config, tmp_path / "runs", silent)
    assert all(row.precision_reached for row in reached.rows) and precision_lines(reached) == []
