"""What an A/B can't do is refused before anything is measured, in a line of what and one of how to mend it."""

from pathlib import Path

import pytest
from tiny_ab import ARENA_BYTES

pytest.importorskip("torch")

from typer.testing import CliRunner

from harness.cli.main import app
from harness.devices.cpu import detect_cpu
from harness.selection import save_entries, table_path

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.mark.parametrize(
    "wrong",
    [["--batch", "0,1"], ["--batch", "x"], ["--batch", "-1"], ["--device", "tpu"], ["--backend", "no-such"]],
)
def test_bad_calls_are_refused(model: Path, tmp_path: Path, wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(model), "--runs-dir", str(tmp_path / "r"), *wrong])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 2
    assert not (tmp_path / "r").exists()


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
    assert "are inputs and results" in result.stderr and len(result.stderr.strip().splitlines()) == 2
