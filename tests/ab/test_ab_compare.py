"""Whole A/B runs on a tiny model: structure, places, records; what is planted to deceive is in test_ab_fakes."""

import fcntl
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tiny_ab import ARENA_BYTES

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from harness.ab.compare import run_ab  # noqa: E402
from harness.ab.sampler import Sampler  # noqa: E402
from harness.backends.linear.onednn import multiplies  # noqa: E402
from harness.cli.main import app  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.probe.memory import MemoryProbe  # noqa: E402
from harness.records import load_record  # noqa: E402
from harness.specs.ab import AB_EVENT, AbConfig, AbRow, AbSampleEvent  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def right(x: Any, w: Any, b: Any, out: Any, **_: int) -> None:
    out.copy_(torch.nn.functional.linear(x, w, b))


def rows_of(model: Path, runs: Path, *backends: str, **settings: Any) -> list[AbRow]:
    defaults = {"min_blocks": 2, "max_blocks": 2, "sample_s": 1e-5, "threads": 1}
    config = AbConfig.model_validate({"model": str(model), "backends": backends, **defaults, **settings})
    _, record = run_ab(config, runs, lambda line: None)
    return list(record.rows)


def test_every_linear_backend_on_every_shape(model: Path, tmp_path: Path) -> None:
    rows = rows_of(model, tmp_path)
    timed = [row for row in rows if row.status == "ok"]
    packed = {"onednn"} if multiplies("BF16") else set()
    assert {row.backend for row in timed} == {"cpu-gemv", "torch", "torch-mv"} | packed
    assert {row.role for row in rows} == {"q", "k/v", "o", "gate/up", "down", "qkv", "gate_up", "lm_head"}
    assert all(row.call_s and row.probe_frac for row in timed)
    whole = [row for row in timed if row.contest_legal]
    assert all(row.read_bytes == 2 * row.problem.n * (row.problem.k + row.problem.bias) for row in whole)
    assert all(row.bytes_per_s == pytest.approx((row.read_bytes or 0) / (row.call_s or 1)) for row in timed)
    assert all(row.status == "unsupported" and row.why for row in rows if row not in timed)


def test_batches_are_problems_of_their_own(model: Path, tmp_path: Path) -> None:
    rows = rows_of(model, tmp_path, "cpu-gemv", batches=(1, 3))
    assert {row.problem.m for row in rows} == {1, 3}
    assert all(row.status == "ok" for row in rows)


def test_every_attention_backend_decodes_and_prefills(model: Path, tmp_path: Path) -> None:
    rows = rows_of(model, tmp_path, op="attention", contexts=(5, 40), chunks=(1, 8))
    ok = {(row.role, row.context, row.backend) for row in rows if row.status == "ok"}
    for context in (5, 40):
        assert {("decode", context, "cpu-decode"), ("decode", context, "torch-sdpa")} <= ok
    assert ("prefill", 40, "torch-sdpa") in ok
    assert not any(row.role == "prefill" and row.context == 5 for row in rows), "a chunk is part of its context"
    sdpa = next(row for row in rows if (row.role, row.context, row.backend) == ("prefill", 40, "torch-sdpa"))
    assert sdpa.flop == 4 * 4 * 16 * (8 * 40 - 8 * 7 // 2)
    assert sdpa.flop_per_s == pytest.approx(sdpa.flop / (sdpa.call_s or 0))
    assert sdpa.peak_frac is not None
    decode = next(row for row in rows if (row.role, row.context, row.backend) == ("decode", 40, "cpu-decode"))
    assert decode.read_bytes == 2 * 2 * 16 * 40 * 2
    assert decode.calls_per_token == 2


def test_every_delta_backend_steps_and_prefills(hybrid: Path, tmp_path: Path) -> None:
    rows = rows_of(hybrid, tmp_path, op="linear-attention", chunks=(1, 7))
    ok = {(row.role, row.backend) for row in rows if row.status == "ok"}
    assert {(r, b) for r in ("decode", "prefill") for b in ("cpu-recurrent", "torch-recurrent")} <= ok
    step = next(row for row in rows if (row.role, row.backend) == ("decode", "cpu-recurrent"))
    assert step.calls_per_token == 3
    assert step.write_bytes == 4 * 4 * 32 * 32 + 2 * 3 * (2 * 2 * 32 + 4 * 32)


def test_hybrids_have_linear_shapes_of_all_layers(hybrid: Path, tmp_path: Path) -> None:
    rows = rows_of(hybrid, tmp_path, "cpu-gemv")
    roles = {role for row in rows for role in row.role.split("/")}
    assert {"in_proj_qkv", "qkv_z_b_a", "qkv_z", "ba", "qkv", "gate_up", "lm_head", "out"} <= roles


@pytest.mark.parametrize(("op", "what"), [("linear-attention", "no linear-attention")])
def test_a_model_without_the_operation_is_refused(model: Path, tmp_path: Path, op: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        rows_of(model, tmp_path / "runs", op=op)
    assert not (tmp_path / "runs").exists()


def test_chunks_that_no_context_holds_are_refused(model: Path, tmp_path: Path) -> None:
    """And not as a model that has no attention."""
    with pytest.raises(ConfigError, match="a chunk of 9 is part of a context, and the largest is 8"):
        rows_of(model, tmp_path / "runs", op="attention", contexts=(4, 8), chunks=(9, 16))
    assert not (tmp_path / "runs").exists()


def test_a_right_plant_is_timed(model: Path, tmp_path: Path, plant: Any) -> None:
    plant("right", right)
    rows = rows_of(model, tmp_path, "right")
    assert {(row.backend, row.status) for row in rows} == {("right", "ok"), ("torch", "ok")}, "the baseline runs too"
    assert all(row.ratio_to_baseline and row.num_pairs == 2 for row in rows)


def test_weights_rotate_through_the_arena(model: Path, tmp_path: Path, plant: Any) -> None:
    """All places once before the samples, and then one after another."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        places[tuple(w.shape)].append(w.storage_offset() // w.numel())
        right(x, w, b, out)

    plant("watched", launch)
    shapes = {(row.problem.n, row.problem.k) for row in rows_of(model, tmp_path, "watched")}
    assert places.keys() == shapes
    for (n, k), found in places.items():
        assert set(found) == set(range(ARENA_BYTES // (2 * n * k))), (n, k)


def test_threads_of_the_side_before_sleep_when_the_roof_is_read(
    model: Path, tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    settle, read = Sampler.settle, MemoryProbe.read
    monkeypatch.setattr(Sampler, "settle", lambda self: done.append("settle") or settle(self))
    monkeypatch.setattr(MemoryProbe, "read", lambda self: done.append("read") or read(self))

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        done.append("call")
        right(x, w, b, out)

    plant("heard", launch)
    rows_of(model, tmp_path, "heard")
    readings = [index for index, what in enumerate(done) if what == "read"]
    assert len(readings) >= 3 and all(done[index - 1] == "settle" for index in readings)


def test_rounds_end_at_the_wanted_precision(model: Path, tmp_path: Path, plant: Any) -> None:
    plant("right", right)
    loose = rows_of(model, tmp_path, "right", min_blocks=3, max_blocks=9, precision=100.0)
    assert {row.num_pairs for row in loose} == {3}
    tight = rows_of(model, tmp_path, "right", min_blocks=3, max_blocks=5, precision=1e-9)
    assert {row.num_pairs for row in tight} == {5}


def test_settings_are_tried_and_the_best_is_compared(model: Path, tmp_path: Path, plant: Any) -> None:
    tried = set()

    def launch(x: Any, w: Any, b: Any, out: Any, loops: int) -> None:
        tried.add(loops)
        for _ in range(loops):
            right(x, w, b, out)

    plant("tunable", launch, tuning=staticmethod(lambda problem, device: ({"loops": 30}, {"loops": 1})))
    rows = [row for row in rows_of(model, tmp_path, "tunable") if row.backend == "tunable"]
    assert tried == {1, 30}
    assert {row.label for row in rows} == {"tunable loops=1"}


def test_what_a_backend_settled_on_by_itself_is_in_its_rows(model: Path, tmp_path: Path, plant: Any) -> None:
    plant("noting", right, note="kernel 7")
    rows = rows_of(model, tmp_path, "noting")
    assert {(row.backend, row.note) for row in rows} == {("noting", "kernel 7"), ("torch", "")}


def test_a_winner_is_measured_once_more(model: Path, tmp_path: Path, plant: Any) -> None:
    def slow(x: Any, w: Any, b: Any, out: Any) -> None:
        for _ in range(30):
            right(x, w, b, out)

    plant("slow", slow)
    plant("right", right)
    rows = rows_of(model, tmp_path, "right", baseline="slow", min_blocks=4, max_blocks=4)
    winners = [row for row in rows if row.outcome == "winner"]
    assert {row.backend for row in winners} == {"right"}
    for row in winners:
        found = row.confirmed
        assert found is not None and found.holds and found.num_pairs == 4
        assert found.call_gain_s == pytest.approx(found.call_s * (found.ratio_to_baseline - 1))
        assert row.token_gain_s() == pytest.approx(row.calls_per_token * found.call_gain_s)
    assert all(row.confirmed is None for row in rows if row not in winners)


def test_the_machine_is_held_while_sides_are_timed(
    model: Path, tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(locks))

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        (lock,) = locks.glob("*.lock")
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        right(x, w, b, out)

    plant("watching", launch)
    assert {row.status for row in rows_of(model, tmp_path / "runs", "watching")} == {"ok"}


def test_the_command_compares_what_it_is_told(model: Path, tmp_path: Path) -> None:
    arguments = ["ab", "linear", "--model", str(model), "--runs-dir", str(tmp_path), "--format", "json"]
    chosen = ["--backend", "torch", "--baseline", "torch-mv", "--precision", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, *chosen])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {row["backend"] for row in rows} == {"torch", "torch-mv"}
    assert all(row["ratio_to_baseline"] == pytest.approx(1.0) for row in rows if row["backend"] == "torch-mv")


@pytest.mark.usefixtures("neighbours")
def test_neighbours_on_our_cores_make_it_unstable(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Its rows are shown and recorded, the exit code says what they are worth, and no table is made of them."""
    monkeypatch.chdir(tmp_path)
    arguments = ["ab", "linear", "--model", str(model), "--runs-dir", str(tmp_path), "--format", "json"]
    chosen = ["--backend", "torch", "--precision", "1", "--device", "cpu", "--save"]
    result = CliRunner().invoke(app, [*arguments, *chosen])
    assert result.exit_code == 4, result.output
    shown = json.loads(result.stdout)
    assert shown["cpu_wait_frac"] == pytest.approx(0.1) and "selection" not in shown and not Path("configs").exists()
    assert "for 10.0 % of the time" in result.stderr and "no winner was saved" in result.stderr


def test_the_record_is_listed_and_shown(model: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    limits = ["--blocks", "8", "--max-blocks", "8"]
    arguments = ["ab", "linear", "--model", str(model), *limits, "--runs-dir", str(runs), "--format", "json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    folder, rows = Path(printed.pop("record")), printed["rows"]
    record = load_record(folder)
    assert json.loads(record.model_dump_json()) == printed
    assert (record.kind, record.status) == ("ab-linear", "done")
    assert "lm_head" in (folder / "log.txt").read_text()
    events = [AB_EVENT.validate_json(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    samples = [event for event in events if isinstance(event, AbSampleEvent)]
    timed = [row for row in rows if row["status"] == "ok"]
    assert sum(event.within == "compare" for event in samples) == 8 * len(timed)
    assert sum(event.within == "confirm" for event in samples) == 16 * sum(row["confirmed"] is not None for row in rows)
    head = next(row for row in record.rows if (row.role, row.backend) == ("lm_head", "torch"))
    calls = [e for e in samples if (e.shape, e.backend, e.within) == (head.shape, "torch", "compare")]
    assert head.call_s == pytest.approx(statistics.median(e.time_s / e.num_calls for e in calls))
    assert "ab-linear" in CliRunner().invoke(app, ["runs", "list", "--runs-dir", str(runs)]).stdout
    shown = CliRunner().invoke(app, ["runs", "show", "ab-linear", "--runs-dir", str(runs)])
    assert "cpu-gemv" in shown.stdout
    refused = CliRunner().invoke(app, ["runs", "recompute", "ab-linear", "--runs-dir", str(runs)])
    assert refused.exit_code == 2
    assert "not of bench" in refused.stderr
