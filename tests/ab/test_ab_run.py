"""Two variants of an engine: what may differ, what is compared, and that scripted truths come out."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted_answers import DONE, answer, scripted_server, token, usage
from tiny_ab import HF
from typer.testing import CliRunner

from harness.ab.ran import refuse_alike
from harness.ab.whole_run import Answers, agreement, run_ab_run
from harness.cli.ab import ab_run_lines
from harness.cli.main import app
from harness.devices.cpu import detect_cpu
from harness.errors import ConfigError, MeasurementError
from harness.records import load_record
from harness.selection import save_entries
from harness.specs.ab_run import AbRequestEvent, AbRunConfig, AbRunRecord, Difference
from harness.specs.engine import EngineReport
from harness.specs.run import RunConfig

SCRIPTED = {
    "name": "x", "model": "qwen3-0.6b", "engine": {"kind": "scripted", "step_noise_frac": 0.02},
    "workload": {"input_tokens": 16, "output_tokens": 40},
}  # fmt: skip


def config(changes: dict[str, Any], base: dict[str, Any] = SCRIPTED, **limits: Any) -> AbRunConfig:
    """a is the base, b the base with engine keys changed."""
    b = base | {"engine": base["engine"] | changes, "name": "y"}
    return AbRunConfig(a=RunConfig.model_validate(base), b=RunConfig.model_validate(b), **limits)


def test_a_scripted_gain_is_found(tmp_path: Path) -> None:
    base = SCRIPTED | {"engine": SCRIPTED["engine"] | {"util_frac": 0.5}}
    folder, record = run_ab_run(config({"util_frac": 0.75}, base), tmp_path, lambda line: None)
    assert record.status == "done"
    tpot = next(found for found in record.comparisons if found.figure == "tpot_s")
    assert tpot.ratio == pytest.approx(1.5, rel=0.03)
    assert tpot.shows == "b is faster"
    assert (record.difference.key, record.difference.a, record.difference.b) == ("engine.util_frac", 0.5, 0.75)
    events = [AbRequestEvent.model_validate_json(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [event.side for event in events[:6]] == ["a", "b", "b", "a", "a", "b"]
    assert len(events) == 2 * tpot.num_pairs
    assert load_record(folder) == record


def test_equals_show_no_difference(tmp_path: Path) -> None:
    """Whether it explains itself changes nothing of an engine's speed."""
    _, record = run_ab_run(config({"explains": False}), tmp_path, lambda line: None)
    assert {found.shows for found in record.comparisons} == {"no difference shown"}


def test_two_servers_answer_the_same_prompts_in_turns(tmp_path: Path) -> None:
    of = [answer([0.002] * 40)]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with scripted_server(folders[0], of) as one, scripted_server(folders[1], of) as other:
        base = SCRIPTED | {"engine": {"kind": "openai", "url": one.url}}
        asked = config({"url": other.url}, base, min_blocks=3, max_blocks=3)
        _, record = run_ab_run(asked, tmp_path, lambda line: None)
        prompts = [[server.told()["body"]["prompt"] for _ in range(4)] for server in (one, other)]
    assert record.status == "done" and record.difference.key == "engine.url"
    assert record.agreement is not None and record.agreement.num_same == 3
    assert prompts[0] == prompts[1] and len({tuple(prompt) for prompt in prompts[0]}) == 4


def test_tokens_that_come_at_once_have_no_figure(tmp_path: Path) -> None:
    at_once = {"pieces": [(0.002, token("a b c", [1, 2, 3])), (0.0, usage(8, 3)), (0.0, DONE)]}
    with scripted_server(tmp_path, [at_once]) as server:
        base = SCRIPTED | {"engine": {"kind": "openai", "url": server.url}}
        asked = config({"url": server.url.replace("127.0.0.1", "localhost")}, base)
        with pytest.raises(MeasurementError, match="all 3 tokens of an answer came at once"):
            run_ab_run(asked, tmp_path, lambda line: None)


def test_rounds_end_when_the_ratio_is_precise(tmp_path: Path) -> None:
    def rounds(precision: float) -> int:
        limits = {"min_blocks": 3, "max_blocks": 7, "precision": precision}
        _, record = run_ab_run(config({"step_noise_frac": 0.3}, **limits), tmp_path, lambda line: None)
        return record.comparisons[0].num_pairs

    assert rounds(10.0) == 3
    assert rounds(1e-9) == 7


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "in nothing"),
        ({"util_frac": 0.9, "gap_s": 1e-3}, "in 2 keys: engine.util_frac: 0.8 and 0.9; engine.gap_s"),
        ({"seed": 1}, "not do the same work: engine.seed"),
    ],
)
def test_what_is_no_single_question_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        run_ab_run(config(changes), tmp_path / "runs", lambda line: None)
    assert not (tmp_path / "runs").exists()


def test_another_workload_is_refused(tmp_path: Path) -> None:
    other = SCRIPTED | {"workload": {"input_tokens": 17, "output_tokens": 40}}
    both = AbRunConfig(a=RunConfig.model_validate(SCRIPTED), b=RunConfig.model_validate(other))
    with pytest.raises(ConfigError, match=r"workload\.input_tokens: 16 and 17"):
        run_ab_run(both, tmp_path, lambda line: None)


def answers(*tokens: list[int], logits: list[float] | None = None) -> Answers:
    return Answers(engine=None, tokens=list(tokens), logits=[logits] * len(tokens))  # type: ignore[arg-type]


def test_answers_that_part_say_where() -> None:
    found = agreement(
        answers([1, 2, 3], [4, 5, 6], logits=[1.0, -3.0]), answers([1, 2, 3], [4, 9, 6], logits=[1.5, -3.0])
    )
    assert (found.num_requests, found.num_same, found.first_difference) == (2, 1, (1, 1))
    assert (found.logits_max_difference, found.logits_max) == (0.5, 3.0)
    assert agreement(answers([1, 2]), answers([1, 2, 3])).first_difference == (0, 2), "one stopped earlier"
    assert agreement(answers([1]), answers([1])).logits_max_difference is None


def write(path: Path, data: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_the_command_and_its_record(tmp_path: Path) -> None:
    a = write(tmp_path / "a.yaml", SCRIPTED)
    b = write(tmp_path / "b.yaml", SCRIPTED | {"engine": SCRIPTED["engine"] | {"util_frac": 0.6}})
    runs = ["--runs-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["ab", "run", a, b, *runs])
    assert result.exit_code == 0, result.output
    assert "engine.util_frac: a 0.8, b 0.6" in result.stdout
    assert "b is slower" in result.stdout
    more = ["--set", "workload.output_tokens=50", "--format", "json"]
    as_json = CliRunner().invoke(app, ["ab", "run", a, b, *runs, *more])
    assert json.loads(as_json.stdout)["config"]["b"]["workload"]["output_tokens"] == 50
    shown = CliRunner().invoke(app, ["runs", "show", Path(json.loads(as_json.stdout)["record"]).name, *runs])
    assert "b is slower" in shown.stdout
    same = CliRunner().invoke(app, ["ab", "run", a, a, *runs])
    assert (same.exit_code, len(same.stderr.strip().splitlines())) == (2, 2)


@pytest.mark.torch
@pytest.mark.compiler
def test_native_variants_share_their_weights_and_say_the_same(tmp_path: Path, small: None) -> None:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(HF | {"dtype": "float32", "model_type": "llama", "rope_theta": 1e4}))
    base = {
        "name": "x", "model": str(path),
        "engine": {"kind": "native", "weights": "synthetic", "device": "cpu", "fuse": False},
        "workload": {"input_tokens": 6, "output_tokens": 5},
    }  # fmt: skip
    limits = {"min_blocks": 2, "max_blocks": 2}
    _, record = run_ab_run(config({"linear": "torch"}, base, **limits), tmp_path / "runs", lambda line: None)
    assert isinstance(record, AbRunRecord)
    assert record.agreement is not None
    assert record.agreement.num_same == 2
    assert 0 < (record.agreement.logits_max_difference or 0) < 1e-4 * (record.agreement.logits_max or 0)
    ops = [[row for row in side.engine.ops if (row.op, row.phase) == ("linear", "decode")] for side in record.sides]
    assert {row.backend for row in ops[1]} == {"torch"}
    assert {row.backend for row in ops[0]} != {"torch"}


def native(folder: Path, **engine: Any) -> dict[str, Any]:
    path = folder / "tiny" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(HF | {"dtype": "float32", "model_type": "llama", "rope_theta": 1e4}))
    return {
        "name": "x", "model": str(path),
        "engine": {"kind": "native", "weights": "synthetic", "device": "cpu"} | engine,
        "workload": {"input_tokens": 6, "output_tokens": 5},
    }  # fmt: skip


@pytest.mark.torch
@pytest.mark.compiler
def test_what_fell_back_is_named_on_its_side(tmp_path: Path, small: None) -> None:
    a = write(tmp_path / "a.yaml", native(tmp_path, linear="torch"))
    b = write(tmp_path / "b.yaml", native(tmp_path, linear="triton-gemv"))
    blocks = ["--blocks", "2", "--max-blocks", "2", "--runs-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["ab", "run", a, b, *blocks, "--format", "json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    lines = [text for side, text in ab_run_lines(load_record(Path(record["record"]))) if side == "b"]  # type: ignore[arg-type]
    assert any(re.match("linear qkv/o/.* triton-gemv can't, cpu-gemv ran: it is a Triton kernel", x) for x in lines)
    assert not any("can't" in text for side, text in ab_run_lines(load_record(Path(record["record"]))) if side == "a")  # type: ignore[arg-type]
    assert {op["fallback_from"] for op in record["sides"][1]["engine"]["ops"] if op["op"] == "linear"} >= {
        "triton-gemv"
    }


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ({"graph": False}, {"graph": True}, "False in both"),
        ({}, {"attention": "triton-decode"}, "b: attention decode .* triton-decode can't, .* ran"),
        ({}, {"selection": "empty.yaml"}, "b: linear .* selection can't, .*: the table does not list this problem"),
        ({}, {"elementwise": "cpu"}, "cpu in both"),
        ({}, {"prefill_chunk": 6}, "6 in both"),
    ],
)
def test_a_thing_is_not_compared_with_itself(
    a: dict[str, Any], b: dict[str, Any], why: str, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_entries(Path("empty.yaml"), [], "tiny", "F32", detect_cpu())
    base = native(tmp_path, **a)
    with pytest.raises(ConfigError, match=f"and ran the same: {why}") as caught:
        run_ab_run(config(b, base), tmp_path / "runs", lambda line: None)
    assert "harness backends" in caught.value.mend
    (run,) = (tmp_path / "runs").iterdir()
    record = load_record(run)
    assert isinstance(record, AbRunRecord) and record.status == "failed" and not record.comparisons
    assert not (run / "samples.jsonl").exists() or not (run / "samples.jsonl").read_text(), "no round was spent on it"


@pytest.mark.torch
@pytest.mark.compiler
def test_chunks_that_differ_are_compared(tmp_path: Path, small: None) -> None:
    asked = config({"prefill_chunk": 3}, native(tmp_path), min_blocks=2, max_blocks=2)
    assert run_ab_run(asked, tmp_path / "runs", lambda line: None)[1].status == "done"


@pytest.mark.parametrize(
    ("key", "a", "b", "alike"),
    [
        ("engine.async_scheduling", {"async_scheduling": True}, {"async_scheduling": True}, True),
        ("engine.async_scheduling", {"async_scheduling": False}, {"async_scheduling": True}, False),
        ("engine.graph", {"compilation_mode": "NONE", "cudagraph_mode": "NONE"}, {}, False),
        ("engine.graph", *[{"compilation_mode": "NONE", "cudagraph_mode": "NONE"}] * 2, True),
        ("engine.attention_backend", {"async_scheduling": True}, {"async_scheduling": True}, False),
        ("engine.selection", {}, {}, False),
    ],
)
def test_what_vllm_resolves_decides_and_what_it_does_not_tell_is_taken_at_its_word(
    key: str, a: dict[str, Any], b: dict[str, Any], alike: bool
) -> None:
    run = RunConfig.model_validate(SCRIPTED)
    sides = [(run, EngineReport(kind="vllm", dtype="BF16", resolved=resolved)) for resolved in (a, b)]
    difference = Difference(key=key, a=None, b=True)
    with pytest.raises(ConfigError, match="ran the same") if alike else nullcontext():
        refuse_alike(difference, *sides)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"workload": {"input_tokens": 16, "output_tokens": 1}}, "one token has no time between tokens"),
        ({"sweep": {"over": "input_tokens", "values": [8, 16]}}, "a sweep has several workloads"),
    ],
)
def test_what_has_no_figure_is_refused_before_a_run_begins(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    engines = [SCRIPTED["engine"] | {"util_frac": share} for share in (0.5, 0.6)]
    files = [write(tmp_path / f"{n}.yaml", SCRIPTED | changes | {"engine": e}) for n, e in enumerate(engines)]
    result = CliRunner().invoke(app, ["ab", "run", *files, "--runs-dir", str(tmp_path / "runs")])
    assert result.exit_code == 2 and what in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "pair",
    [
        "attention-torch attention-ours",
        "prefill-whole prefill-chunked",
        "products-apart products-fused",
        "graph-off graph-on",
        "prefix-caching-off prefix-caching-on",
    ],
)
def test_presets_ask_one_question(pair: str) -> None:
    from harness.config_io import load_yaml_model
    from harness.resources import config_folders

    folder = config_folders("runs")[-1] / "ab"
    a, b = (load_yaml_model(folder / f"{name}.yaml", RunConfig) for name in pair.split())
    assert AbRunConfig(a=a, b=b).difference().key.startswith("engine.")
