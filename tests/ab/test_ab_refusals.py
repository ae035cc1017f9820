"""What an A/B can't do is refused before anything is measured, in a line of what and one of how to mend it."""

from pathlib import Path
from typing import Any

import pytest
from tiny_ab import ARENA_BYTES

pytest.importorskip("torch")

from typer.testing import CliRunner

from harness.ab.operands.attention import SCORE_ARRAYS, SCORES_AT_ONCE, reference_bytes
from harness.ab.shapes import attention_cases
from harness.cli.main import app
from harness.devices.cpu import detect_cpu
from harness.errors import ConfigError
from harness.models import resolve_model
from harness.selection import save_entries, table_path

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--batch", "0,1"], ["--batch", "x"], ["--batch", "-1"], ["--batch", "1" * 5000], ["--device", "tpu"],
        ["--backend", "no-such"], ["--model", ""], ["--blocks", "9" * 20], ["--baseline", "torch-mv", "--batch", "4"],
    ],
)  # fmt: skip
def test_bad_calls_are_refused(model: Path, tmp_path: Path, wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(model), "--runs-dir", str(tmp_path / "r"), *wrong])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 2 and len(result.stderr) < 400
    assert wrong[0] in result.stderr or wrong[0] not in ("--batch", "--model", "--blocks"), "which option it was"
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("in_the_way", ["configs", "configs/selections"])
def test_a_folder_that_no_table_can_be_written_to_is_refused_before_winners_are_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(in_the_way).parent.mkdir(exist_ok=True)
    Path(in_the_way).write_text("no folder")
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(model), "--save", "--runs-dir", "runs"])
    assert result.exit_code == 2 and "compare without --save" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2 and not Path("runs").exists()


@pytest.mark.parametrize("format", ["table", "json"])
def test_a_result_whose_winners_can_not_be_kept_is_shown_all_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Whatever came in the way since it was tried."""

    def full(*_: Any) -> Path:
        raise ConfigError("configs: No space left on device", "free some space")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.ab.compare.save_winners", full)
    chosen = ["--backend", "torch", "--precision", "1", "--save", "--format", format, "--runs-dir", "runs"]
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(model), *chosen])
    assert result.exit_code == 2 and "No space left on device" in result.stderr
    assert "1x131x64" in result.stdout and "selection" not in result.stdout


def test_a_table_that_winners_can_not_stand_in_is_refused_before_they_are_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = table_path(detect_cpu(), str(model), "BF16")
    save_entries(path, [], str(model), "BF16", detect_cpu())
    before = path.read_bytes()
    monkeypatch.setattr("harness.selection.version", lambda package: "another")
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(model), "--save", "--runs-dir", "runs"])
    assert result.exit_code == 2
    assert "was measured elsewhere" in result.stderr and "move it away" in result.stderr
    assert path.read_bytes() == before and not Path("runs").exists()


def test_a_context_that_memory_has_no_room_for_is_refused(model: Path, tmp_path: Path) -> None:
    arguments = [
        "ab",
        "attention",
        "--model",
        str(model),
        "--contexts",
        str(1 << 20),
        "--runs-dir",
        str(tmp_path / "r"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.ab.operands.arena.free_memory_bytes", lambda device: 1 << 22)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3
    assert "are free" in result.stderr


@pytest.mark.parametrize(
    "wanted",
    [["linear", "--batch", str(1 << 20)], ["attention", "--contexts", "32", "--chunks", "32"]],
    ids=["batch", "chunk"],
)
def test_inputs_and_results_that_memory_has_no_room_for_are_refused(
    model: Path, tmp_path: Path, wanted: list[str]
) -> None:
    """Where the weights or the cache alone had room."""
    arguments = ["ab", *wanted, "--model", str(model), "--runs-dir", str(tmp_path / "r")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.ab.operands.arena.free_memory_bytes", lambda device: ARENA_BYTES)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3
    assert "B are inputs, results and what" in result.stderr and len(result.stderr.strip().splitlines()) == 2


def test_what_the_exact_result_of_a_chunk_takes_is_counted_and_has_a_bound(model: Path, tmp_path: Path) -> None:
    """In blocks of queries a chunk that is 64 times as long takes no more scores at once."""
    context = 1 << 16
    problems = [attention_cases(resolve_model(str(model)).spec, [context], [m])[0].problem for m in (64, 4096)]
    sizes = [reference_bytes(problem, context) for problem in problems]
    scores = SCORE_ARRAYS * SCORES_AT_ONCE * 8
    keys_and_values = 4 * context * 16 * 8
    for size in sizes:
        assert keys_and_values + scores / 2 < size < keys_and_values + 1.5 * scores
    arguments = ["ab", "attention", "--contexts", str(context), "--chunks", "4096", "--model", str(model)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.ab.operands.arena.free_memory_bytes", lambda device: scores // 2)
        result = CliRunner().invoke(app, [*arguments, "--runs-dir", str(tmp_path / "r")])
    assert result.exit_code == 3 and len(result.stderr.strip().splitlines()) == 2
