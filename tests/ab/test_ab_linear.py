"""Whole A/B runs on a tiny model: structure and checks; and planted backends that are caught before they are timed."""

import fcntl
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from harness.ab import linear as ab_linear  # noqa: E402
from harness.backends.base import Support  # noqa: E402
from harness.backends.registry import linear_backend, linear_backends  # noqa: E402
from harness.cli.main import app  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.records import load_record  # noqa: E402
from harness.specs.ab import AB_EVENT, AbConfig, AbRow, AbSampleEvent  # noqa: E402
from harness.specs.run import ProbeConfig  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

HF = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, and an arena and a probe of its size."""
    monkeypatch.setattr(ab_linear, "ROTATION_CACHES", 0)
    monkeypatch.setattr(ab_linear, "MIN_ROTATION_BYTES", 1 << 20)
    monkeypatch.setattr(ab_linear, "SETTLE_S", 0.0)
    small = ProbeConfig(buffer_bytes=1 << 20, survey_s=0.05, reading_s=0.001)
    monkeypatch.setattr(ab_linear, "ProbeConfig", lambda **_: small)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HF))
    return path


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Registers a backend for one test: its launch is what the test gives."""
    linear_backends.all()  # so that ours are there before

    def add(name: str, launch: Any) -> None:
        class Planted:
            """Planted."""

            contest_legal = True

            def __init__(self, executor: Any) -> None: ...
            @staticmethod
            def supports(problem: Any, device: Any) -> Support:
                return Support.yes()

            def prepare(self, weight: Any, bias: Any, problem: Any) -> Any:
                return weight, bias

            def read_bytes(self, packed: Any, m: int) -> int:
                return packed[0].nbytes

            def bind(self, x: Any, packed: Any, out: Any) -> Any:
                return lambda: launch(x, *packed, out)

        monkeypatch.setattr(linear_backends, "_backends", dict(linear_backends._backends))
        linear_backend(name)(Planted)

    yield add


def right(x: Any, w: Any, b: Any, out: Any) -> None:
    out.copy_(torch.nn.functional.linear(x, w, b))


def rows_of(model: Path, runs: Path, *backends: str) -> list[AbRow]:
    config = AbConfig(model=str(model), backends=backends, blocks=2, sample_s=1e-5)
    _, record = ab_linear.run_ab_linear(config, runs, lambda line: None)
    return list(record.rows)


def test_every_backend_on_every_shape(model: Path, tmp_path: Path) -> None:
    rows = rows_of(model, tmp_path)
    assert {row.backend for row in rows} == {"cpu-gemv", "torch", "torch-mv"}
    assert {row.role for row in rows} == {"q", "k/v", "o", "gate/up", "down", "qkv", "gate_up", "lm_head"}
    assert all(row.status == "ok" and row.call_s and row.probe_frac for row in rows)
    assert all(row.read_bytes == 2 * row.problem.n * (row.problem.k + row.problem.bias) for row in rows)
    assert all(row.read_bytes_per_s == pytest.approx((row.read_bytes or 0) / (row.call_s or 1)) for row in rows)


@pytest.mark.parametrize(
    ("name", "launch", "why"),
    [
        ("writes-nothing", lambda x, w, b, out: None, "nan"),
        (
            "skips-the-tail",
            lambda x, w, b, out: out[:, :-1].copy_(torch.nn.functional.linear(x, w, b)[:, :-1]),
            "first at",
        ),
        ("forgets-the-bias", lambda x, w, b, out: out.copy_(torch.nn.functional.linear(x, w)), "first at"),
        ("cached", lambda x, w, b, out: out.copy_(torch.ones_like(out)), "first at"),
    ],
)
def test_a_wrong_backend_is_incorrect_and_never_ranked(
    model: Path, tmp_path: Path, plant: Any, name: str, launch: Any, why: str
) -> None:
    plant(name, launch)
    rows = [row for row in rows_of(model, tmp_path, name, "torch") if row.backend == name]
    wrong = [row for row in rows if row.status == "incorrect"]
    assert wrong
    assert all(why in row.why and row.call_s is None and row.outcome == "-" for row in wrong)
    if name != "forgets-the-bias":
        assert len(wrong) == len(rows)


def test_a_right_plant_is_timed(model: Path, tmp_path: Path, plant: Any) -> None:
    plant("right", right)
    rows = rows_of(model, tmp_path, "right")
    assert {(row.backend, row.status) for row in rows} == {("right", "ok"), ("torch", "ok")}, "the baseline runs too"
    assert all(row.ratio_to_baseline and row.num_pairs == 2 for row in rows)


def test_weights_rotate_through_the_arena(model: Path, tmp_path: Path, plant: Any) -> None:
    """Checked at place 0; then at least a warm and a timed call in each of two blocks, the other side's in between."""
    places: dict[tuple[int, ...], set[int]] = defaultdict(set)

    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        places[tuple(w.shape)].add(w.storage_offset() // w.numel())
        right(x, w, b, out)

    plant("watched", launch)
    shapes = {(row.problem.n, row.problem.k) for row in rows_of(model, tmp_path, "watched")}
    assert places.keys() == shapes
    assert all(len(found) >= 4 for found in places.values()), places


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


def test_a_backend_that_breaks_ends_the_run_and_is_recorded(model: Path, tmp_path: Path, plant: Any) -> None:
    def launch(x: Any, w: Any, b: Any, out: Any) -> None:
        raise RuntimeError("no such instruction")

    plant("broken", launch)
    with pytest.raises(RuntimeError, match="no such instruction"):
        rows_of(model, tmp_path / "runs", "broken")
    (folder,) = (tmp_path / "runs").iterdir()
    record = load_record(folder)
    assert record.status == "failed"
    assert record.failure is not None
    assert "no such instruction" in record.failure.what


def test_the_command_compares_what_it_is_told(model: Path, tmp_path: Path) -> None:
    arguments = [
        "ab",
        "linear",
        "--model",
        str(model),
        "--blocks",
        "8",
        "--runs-dir",
        str(tmp_path),
        "--format",
        "json",
    ]
    chosen = ["--backend", "torch", "--baseline", "torch-mv"]
    result = CliRunner().invoke(app, [*arguments, *chosen])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {row["backend"] for row in rows} == {"torch", "torch-mv"}
    assert all(row["ratio_to_baseline"] == pytest.approx(1.0) for row in rows if row["backend"] == "torch-mv")


def test_the_record_is_listed_and_shown(model: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    arguments = ["ab", "linear", "--model", str(model), "--blocks", "8", "--runs-dir", str(runs), "--format", "json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    folder, rows = Path(printed.pop("record")), printed["rows"]
    record = load_record(folder)
    assert json.loads(record.model_dump_json()) == printed
    assert (record.kind, record.status) == ("ab-linear", "done")
    assert "lm_head" in (folder / "log.txt").read_text()
    events = [AB_EVENT.validate_json(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert sum(event.event == "ab-sample" for event in events) == 8 * len(rows)
    head = next(row for row in record.rows if (row.role, row.backend) == ("lm_head", "torch"))
    samples = [event for event in events if isinstance(event, AbSampleEvent)]
    calls = [(e.time_s, e.num_calls) for e in samples if (e.shape, e.backend) == (head.shape, "torch")]
    assert all(num_calls > 1 for _, num_calls in calls)
    assert head.call_s == pytest.approx(statistics.median(time_s / num_calls for time_s, num_calls in calls))
    assert "ab-linear" in CliRunner().invoke(app, ["runs", "list", "--runs-dir", str(runs)]).stdout
    shown = CliRunner().invoke(app, ["runs", "show", "ab-linear", "--runs-dir", str(runs)])
    assert "cpu-gemv" in shown.stdout
    refused = CliRunner().invoke(app, ["runs", "recompute", "ab-linear", "--runs-dir", str(runs)])
    assert refused.exit_code == 2
    assert "not of bench" in refused.stderr


def test_unknown_names_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such"):
        rows_of(model, tmp_path, "no-such")
    result = CliRunner().invoke(app, ["ab", "linear", "--model", str(model), "--batch", "0,1"])
    assert result.exit_code == 2
