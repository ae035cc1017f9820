"""Backends planted to deceive: each is caught, named for what it does, and never ranked; the others still are."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_ab import ARENA_BYTES

torch = pytest.importorskip("torch")

from harness.ab import judge, side  # noqa: E402
from harness.ab.compare import run_ab  # noqa: E402
from harness.ab.operands import arena  # noqa: E402
from harness.ab.operands.base import NUM_CHECKS  # noqa: E402
from harness.probe.memory import MemoryProbe  # noqa: E402
from harness.specs.ab import AbConfig, AbRow  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def right(x: Any, w: Any, b: Any, out: Any) -> None:
    out.copy_(torch.nn.functional.linear(x, w, b))


def rows_of(model: Path, runs: Path, name: str, sample_s: float = 1e-5) -> tuple[list[AbRow], list[AbRow]]:
    """(the fake's rows, torch's)."""
    config = AbConfig(model=str(model), backends=(name,), min_blocks=2, max_blocks=2, sample_s=sample_s, threads=1)
    _, record = run_ab(config, runs, lambda line: None)
    return [r for r in record.rows if r.backend == name], [r for r in record.rows if r.backend == "torch"]


def assert_caught(
    model: Path, runs: Path, name: str, status: str, why: str, partly: bool = False, sample_s: float = 1e-5
) -> None:
    fakes, others = rows_of(model, runs, name, sample_s)
    caught = [row for row in fakes if row.status == status]
    assert caught if partly else len(caught) == len(fakes), [(row.status, row.why) for row in fakes]
    assert all(why in row.why for row in caught), caught[0].why
    assert all(row.call_s is None and row.outcome == "-" and row.confirmed is None for row in caught)
    assert {row.status for row in others} == {"ok"}, "one fake must not take the others with it"


def raises(x: Any, w: Any, b: Any, out: Any) -> None:
    raise RuntimeError("no such instruction")


def writes_nan(x: Any, w: Any, b: Any, out: Any) -> None:
    right(x, w, b, out)
    out[..., -1] = float("nan")


def writes_nothing(x: Any, w: Any, b: Any, out: Any) -> None:
    pass


def skips_the_tail(x: Any, w: Any, b: Any, out: Any) -> None:
    out[:, :-1].copy_(torch.nn.functional.linear(x, w, b)[:, :-1])


def writes_a_constant(x: Any, w: Any, b: Any, out: Any) -> None:
    out.fill_(1)


@pytest.mark.parametrize("launch", [writes_nan, writes_nothing, skips_the_tail, writes_a_constant])
def test_a_wrong_result(model: Path, tmp_path: Path, plant: Any, launch: Any) -> None:
    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "incorrect", "first at")


def test_a_forgotten_bias(model: Path, tmp_path: Path, plant: Any) -> None:
    plant("fake", lambda x, w, b, out: out.copy_(torch.nn.functional.linear(x, w)))
    assert_caught(model, tmp_path, "fake", "incorrect", "first at", partly=True)


def test_one_that_raises(model: Path, tmp_path: Path, plant: Any) -> None:
    plant("fake", raises)
    assert_caught(model, tmp_path, "fake", "failed", "RuntimeError: no such instruction")


def test_one_that_raises_while_it_is_timed(model: Path, tmp_path: Path, plant: Any) -> None:
    calls: dict[Any, int] = {}

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        key = w.shape, b is None
        calls[key] = calls.get(key, 0) + 1
        if calls[key] > ARENA_BYTES // (2 * w.numel()) + NUM_CHECKS:  # every place once, and the checks
            raise RuntimeError("too warm")
        right(x, w, b, out)

    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "failed", "too warm")


def test_one_that_raises_when_it_is_checked_once_more(
    model: Path, tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the last check runs after the last block."""
    blocks, is_over = iter(range(100)), False
    read = MemoryProbe.read

    def counting(self: Any, reading_s: float | None = None) -> Any:
        nonlocal is_over
        is_over = next(blocks) % 3 == 2  # of two blocks, before each and after the last
        return read(self, reading_s)

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        nonlocal is_over
        if is_over:
            is_over = False  # the next problem begins
            raise RuntimeError("worn out")
        right(x, w, b, out)

    monkeypatch.setattr(MemoryProbe, "read", counting)
    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "failed", "after its samples: RuntimeError: worn out")


def test_one_that_cannot_prepare(model: Path, tmp_path: Path, plant: Any) -> None:
    def prepare(self: Any, weight: Any, bias: Any, problem: Any) -> Any:
        raise MemoryError("no room")

    plant("fake", right, prepare=prepare)
    assert_caught(model, tmp_path, "fake", "failed", "MemoryError: no room")


def test_one_that_changes_its_input(model: Path, tmp_path: Path, plant: Any) -> None:
    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        right(x, w, b, out)
        x[0, 0] += 1

    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "changes-operands", "its x")


@pytest.mark.parametrize("last", [False, True])
def test_one_that_changes_a_weight(model: Path, tmp_path: Path, plant: Any, last: bool) -> None:
    """The first or the last value: no checksum of a part would see both. The others get whole weights again."""

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        right(x, w, b, out)
        w[-1 if last else 0, -1 if last else 0] = 0.5

    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "changes-operands", "its weight")


def test_one_that_changes_a_weight_while_it_is_timed(model: Path, tmp_path: Path, plant: Any) -> None:
    """Nobody saw who it was: no side is ranked, and none is named as the one."""
    calls: dict[Any, int] = {}

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        key = w.shape, b is None
        calls[key] = calls.get(key, 0) + 1
        right(x, w, b, out)
        if calls[key] > ARENA_BYTES // (2 * w.numel()) + NUM_CHECKS:  # every place once, and the checks
            w[0, 0] = float("nan") if w[0, 0] == 1 else 1.0  # what the next problem must not find

    plant("fake", launch)
    for rows in rows_of(model, tmp_path, "fake"):
        assert {row.status for row in rows} == {"changes-operands"} and {row.outcome for row in rows} == {"-"}
        assert all("this side or one beside it wrote to the weight" in row.why for row in rows)


def test_one_that_keeps_a_copy(model: Path, tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its weights in another layout, more than it declares; declared, it is no fake."""
    larger = json.loads(model.read_text()) | {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 600}
    model.write_text(json.dumps(larger))
    monkeypatch.setattr(arena, "MIN_ROTATION_BYTES", 48 << 20)
    monkeypatch.setattr(side, "MEMORY_NOISE_BYTES", 24 << 20)

    def prepare(self: Any, weight: Any, bias: Any, problem: Any) -> Any:
        return weight.float(), bias

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        right(x.float(), w, None if b is None else b.float(), out)

    plant("fake", launch, prepare=prepare)
    assert_caught(model, tmp_path / "undeclared", "fake", "undeclared-memory", "MiB more than the 0 it declares")
    plant("honest", launch, prepare=prepare, kept_bytes=lambda self, packed: packed[0].nbytes)
    honest, _ = rows_of(model, tmp_path / "declared", "honest")
    assert {row.status for row in honest} == {"ok"}


def test_one_that_keeps_its_first_result(model: Path, tmp_path: Path, plant: Any) -> None:
    kept: dict[Any, Any] = {}

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        weight = w.data_ptr(), w.shape
        if weight not in kept:
            kept[weight] = torch.nn.functional.linear(x, w, b)
        out.copy_(kept[weight])

    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "incorrect", "first at")


def test_one_that_is_right_until_it_is_timed(model: Path, tmp_path: Path, plant: Any) -> None:
    """Right as long as it is checked, and then the same result again and again."""
    calls: dict[Any, int] = {}
    kept: dict[Any, Any] = {}

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        key = w.shape, b is None
        calls[key] = calls.get(key, 0) + 1
        if calls[key] <= ARENA_BYTES // (2 * w.numel()) + NUM_CHECKS:  # every place once, and the checks
            kept[key] = torch.nn.functional.linear(x, w, b)
        out.copy_(kept[key])

    plant("fake", launch)
    assert_caught(model, tmp_path, "fake", "incorrect", "while it was timed")


def keep_by_input(right_calls: int) -> Any:
    """A launch that is right for an input so many times, and then forgets the weight."""
    kept: dict[Any, Any] = {}
    calls: dict[Any, int] = {}

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        key = float(x.double().sum()), w.shape, b is None
        calls[key] = calls.get(key, 0) + 1
        if calls[key] <= right_calls:
            kept[key] = torch.nn.functional.linear(x, w, b)
        out.copy_(kept[key])

    return launch


def test_one_that_keeps_its_result_by_the_input(model: Path, tmp_path: Path, plant: Any) -> None:
    """And forgets the weight."""
    plant("fake", keep_by_input(1))
    assert_caught(model, tmp_path, "fake", "incorrect", "first at")


def test_one_that_keeps_its_result_once_an_input_comes_often(model: Path, tmp_path: Path, plant: Any) -> None:
    """As none does in the checks before the samples."""
    plant("fake", keep_by_input(2))
    fakes, others = rows_of(model, tmp_path, "fake", sample_s=1.0)
    assert any("while it was timed" in row.why for row in fakes)
    assert {row.status for row in fakes} == {"incorrect"} and {row.status for row in others} == {"ok"}


def test_one_that_lays_its_weight_out_again_in_place(model: Path, tmp_path: Path, plant: Any) -> None:
    """Its words are the same ones, elsewhere."""

    def prepare(self: Any, weight: Any, bias: Any, problem: Any) -> Any:
        weight.copy_(weight.flip(0))
        return weight, bias

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        out.copy_(torch.nn.functional.linear(x, w).flip(1) + (0 if b is None else b))

    plant("fake", launch, prepare=prepare)
    assert_caught(model, tmp_path, "fake", "changes-operands", "its weight")


def test_one_that_makes_its_copy_once_it_is_timed(
    model: Path, tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second call at a place on; the memory of the calls before the samples does not show it."""
    larger = json.loads(model.read_text()) | {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 600}
    model.write_text(json.dumps(larger))
    monkeypatch.setattr(arena, "MIN_ROTATION_BYTES", 48 << 20)
    monkeypatch.setattr(side, "MEMORY_NOISE_BYTES", 24 << 20)
    copies: dict[Any, Any] = {}
    called: set[Any] = set()

    def prepare(self: Any, weight: Any, bias: Any, problem: Any) -> Any:
        if copies and next(iter(copies)) != weight.shape:
            copies.clear()  # of the problem before
        called.clear()
        return weight, bias

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        if w.data_ptr() in called:
            copies.setdefault(w.shape, {}).setdefault(w.data_ptr(), w.float())
        called.add(w.data_ptr())
        right(x, w, b, out)

    plant("fake", launch, prepare=prepare)
    assert_caught(model, tmp_path, "fake", "undeclared-memory", "MiB more than the 0 it declares", sample_s=0.05)


def test_one_that_is_faster_than_memory(
    model: Path, tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own word; what it leaves is right."""
    monkeypatch.setattr(arena.Arena, "outlasts_caches", True)
    monkeypatch.setattr(judge, "OUTRUN", 1e5)  # torch's products are in a cache here
    plant("fake", right, read_bytes=lambda self, packed, m: 10**18)
    assert_caught(model, tmp_path, "fake", "faster-than-memory", "times the probe's fastest reading")
