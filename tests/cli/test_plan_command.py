"""`harness plan` as people and programs see it."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.cli.main import app
from harness.specs.plan import Plan
from harness.units import ms

RUN = """\
name: t
model: qwen3-0.6b
engine: {kind: scripted, util_frac: 0.8}
workload: {input_tokens: 8, output_tokens: 64, repeats: 2}
"""


def plan(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def json_of(*arguments: object) -> Any:
    return json.loads(plan(*arguments, "--format", "json").stdout)


def line_of(text: str, name: str) -> str:
    return next(line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(f"{name}  "))


@pytest.fixture
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HARNESS_RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "run.yaml").write_text(RUN)
    assert CliRunner().invoke(app, ["bench", str(tmp_path / "run.yaml")]).exit_code == 0
    return next((tmp_path / "runs").iterdir()).name


def test_each_line_shows_the_figure_of_its_name() -> None:
    options = ("mixtral-8x7b", "--device", "h100", "--batch", 4, "--tensor-parallel", 2, "--input-tokens", 2000)
    row, text = json_of(*options), plan(*options).stdout
    assert text.startswith("mixtral-8x7b on h100, context 1,024, batch 4, shared by 2 devices")
    assert line_of(text, "TPOT floor").startswith(f"{ms(row['floor_s'])} (memory wall): ")
    assert line_of(text, "TTFT floor").startswith(f"{ms(row['ttft_floor_s'])} ({row['ttft_bound']} wall) for 2,000")
    assert line_of(text, "walls") == f"memory {ms(row['memory_floor_s'])}, compute {ms(row['compute_floor_s'])} a step"
    assert line_of(text, "weights read").startswith(f"{row['step_weight_bytes']:,} B of 93,405,585,408 B")
    assert line_of(text, "experts").startswith("uniform routing is assumed")
    assert f"weights {row['rank_weight_read_bytes']:,} B, 65,536 B a position" in line_of(text, "each device")
    assert line_of(text, "all-reduces").startswith(f"{ms(row['collectives_floor_s'])} a step at 450.00 GB/s")
    assert line_of(text, "ridge").startswith(f"{row['ridge_flop_per_byte']:.0f} FLOP a byte")


def test_json_has_every_figure_and_every_what_if() -> None:
    row = json_of("qwen3-0.6b", "--device", "h100")
    assert row.keys() == Plan.model_fields.keys()
    assert {what_if["changed"] for what_if in row["what_ifs"]} == {
        "weight_bits", "kv_bits", "batch", "context", "tensor_parallel", "roof_read_bytes_per_s",
    }  # fmt: skip


def test_what_ifs_stand_below_with_the_plan_itself_first() -> None:
    text = plan("qwen3-0.6b", "--device", "h100").stdout
    head, rows = text.split("\n\n")
    assert "what if" not in head
    assert rows.splitlines()[1].split()[:5] == ["(as", "planned)", *line_of(text, "TPOT floor").split()[:2], "1.000"]
    assert [row.partition("  ")[0] for row in rows.splitlines()[2:]] == [
        row["what"] for row in json_of("qwen3-0.6b", "--device", "h100")["what_ifs"]
    ]


def test_several_devices_have_a_row_each() -> None:
    options = ("qwen3-0.6b", "--device", "h100", "--device", "bw-gfx936", "--context", 1)
    text = plan(*options).stdout.splitlines()
    assert text[0].startswith("qwen3-0.6b, context 1")
    assert [line.split()[0] for line in text[1:]] == ["device", "h100", "bw-gfx936"]
    rows = json_of(*options)
    assert [row["device"] for row in rows] == ["h100", "bw-gfx936"]
    assert all(row.keys() == Plan.model_fields.keys() for row in rows)
    assert plan(*options, "--format", "md").stdout.startswith("| device")


def test_csv_is_a_row_a_device() -> None:
    for names in (["h100"], ["h100", "a100"]):
        options = [part for name in names for part in ("--device", name)]
        rows = list(csv.DictReader(io.StringIO(plan("qwen3-0.6b", *options, "--format", "csv").stdout)))
        assert [row["device"] for row in rows] == names
        assert all(row["weight_read_bytes"] == "1192099840" and row["weight_bits"] == "" for row in rows)
        assert json.loads(rows[0]["what_ifs"])[0]["what"] == "weights at 8 bits"


def test_md_has_a_table_of_figures_and_one_of_what_ifs() -> None:
    figures, what_ifs = plan("qwen3-0.6b", "--device", "h100", "--format", "md").stdout.split("\n\n")
    assert figures.startswith("| figure")
    assert what_ifs.startswith("| what if")


def test_a_link_that_nobody_knows_is_said_to_be_missing() -> None:
    options = ("llama-2-13b", "--device", "mi300x", "--tensor-parallel", 8)
    assert json_of(*options)["collectives_floor_s"] is None
    assert line_of(plan(*options).stdout, "all-reduces") == "no link of this device is known: not in any figure"


def test_bits_are_shown_and_counted() -> None:
    options = ("qwen3-0.6b", "--device", "h100", "--weight-bits", 4, "--kv-bits", 8)
    assert "weights at 4 bits, cache at 8 bits" in plan(*options).stdout
    row = json_of(*options)
    assert (row["weight_bits"], row["kv_bits"], row["kv_bytes_per_context_token"]) == (4, 8, 57_344)


def test_a_run_calibrates(run_id: str) -> None:
    row, text = json_of("qwen3-0.6b", "--from-run", run_id), plan("qwen3-0.6b", "--from-run", run_id[-8:]).stdout
    assert row["calibration"]["run_id"] == run_id
    assert line_of(text, "predicted") == f"TPOT {ms(row['predicted_tpot_s'])}, TTFT {ms(row['predicted_ttft_s'])}"
    assert line_of(text, "by the run").startswith(f"{run_id}: approaching, utilization 0.800, prefill MFU ")
    assert "predicted TPOT" in text


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("qwen3-0.6b",), "a plan is for devices or from a run"),
        (("qwen3-0.6b", "--device", "h100", "--from-run", "x"), "a plan is for devices or from a run"),
        (("qwen3-0.6b", "--device", "h100", "--device", "nothing"), "no device is called 'nothing'"),
        (("qwen3-0.6b", "--device", "h100", "--device", "k100-ai"), "nobody publishes a bandwidth of k100-ai"),
        (("qwen3-0.6b", "--device", "h100", "--tensor-parallel", "3"), "16 heads can't be shared out to 3 ranks"),
        (("qwen3-0.6b", "--device", "h100", "--input-tokens", "99999"), "a prompt of 99999 passes"),
        (("qwen3-1.7b", "--from-run", "RUN"), "is of qwen3-0.6b in BF16, not of qwen3-1.7b"),
        (("qwen3-0.6b", "--from-run", "absent"), "no run 'absent'"),
    ],
)
def test_a_fault_is_two_lines_and_exit_code_2(run_id: str, arguments: tuple[str, ...], what: str) -> None:
    result = plan(*(run_id if argument == "RUN" else argument for argument in arguments), code=2)
    assert result.stdout == ""
    said, mend = result.stderr.strip().splitlines()
    assert said.startswith("error: ") and what in said
    assert mend.startswith("mend:  ")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--batch", "0"), ("--batch", "x"), ("--batch", str(1 << 40)), ("--weight-bits", "5"), ("--tensor-parallel", "0")],
)
def test_a_bad_number_names_its_option(option: str, value: str) -> None:
    result = plan("qwen3-0.6b", "--device", "h100", option, value, code=2)
    assert option in result.stderr
    assert result.stdout == ""


def test_an_invalid_run_is_exit_code_4(run_id: str, tmp_path: Path) -> None:
    bad = CliRunner().invoke(
        app, ["bench", str(tmp_path / "run.yaml"), "--set", "engine.util_frac=1.3", "--format", "json"]
    )
    assert bad.exit_code == 4
    assert "is invalid" in plan("qwen3-0.6b", "--from-run", json.loads(bad.stdout)["record"], code=4).stderr
