"""Two selections of one vLLM: one server for both sides, switched between requests, each side's counters its own."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted_answers import answer

from harness.ab.whole_run import run_ab_run
from harness.bench import run_bench
from harness.cli.ab import ab_run_lines
from harness.cli.bench import engine_lines
from harness.engines.vllm_setup import Selections, selections_of_both
from harness.errors import ConfigError, MeasurementError
from harness.records import load_record
from harness.specs.ab_run import AbRunConfig, AbRunRecord
from harness.specs.device import DeviceInfo
from harness.specs.run import RunConfig
from harness.specs.vllm import VllmServerEngine

STAND_IN = Path(__file__).parents[1] / "engines" / "stand_in_vllm.py"
TOKENS, LAYERS, BLOCKS = 20, 3, 3
STEPS = (TOKENS - 1) * (BLOCKS + 1)
"""Of each side, the warm-up's among them: the stand-in's answers all have as many tokens."""
CONTEST = {"HARNESS_CONTEST": "1"}


def run_config(folder: Path, script: dict[str, Any] | None = None, **engine: Any) -> RunConfig:
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {STAND_IN} "$@"\n')
    python.chmod(0o755)
    script = {"answers": [answer([0.005] * TOKENS)]} | (script or {})
    settings = {"kind": "vllm-server", "python": str(python), "load_format": "dummy", "device": "none"} | engine
    settings["environment"] = {"STAND_IN": json.dumps(script)} | settings.get("environment", {})
    work = {"input_tokens": 8, "output_tokens": TOKENS, "repeats": 2}
    return RunConfig.model_validate({"name": "t", "model": "qwen3-0.6b", "engine": settings, "workload": work})


def compare(
    folder: Path, a: str | None, b: str | None, script: dict[str, Any] | None = None, **engine: Any
) -> tuple[Path, AbRunRecord]:  # fmt: skip
    sides = [run_config(folder, script, selection=selection, **engine) for selection in (a, b)]
    config = AbRunConfig(a=sides[0], b=sides[1], min_blocks=BLOCKS, max_blocks=BLOCKS)
    return run_ab_run(config, folder / "runs", lambda line: None)


def failed(folder: Path) -> AbRunRecord:
    (run,) = (folder / "runs").iterdir()
    record = load_record(run)
    assert isinstance(record, AbRunRecord) and record.status == "failed" and not record.sides
    return record


def servers(run: Path) -> int:
    return sum(log.read_text().count("command [") for log in run.rglob("server.log"))


@pytest.mark.parametrize(
    ("a", "b", "backends"),
    [
        (None, "one.yaml", ["vllm", "of-table-0"]),
        ("one.yaml", None, ["of-table-0", "vllm"]),
        ("one.yaml", "other.yaml", ["of-table-0", "of-table-1"]),
    ],
)
def test_one_server_has_both_and_each_side_its_own_counts(
    a: str | None, b: str | None, backends: list[str], tmp_path: Path
) -> None:
    run, record = compare(tmp_path, a, b)
    assert record.status == "done" and record.difference.key == "engine.selection"
    assert servers(run) == 1
    for side, selection, backend in zip(record.sides, (a, b), backends, strict=True):
        resolved = side.engine.resolved
        assert resolved["selection"] == (selection or "off")
        assert resolved["selection_calls"] == f"{backend} x{STEPS * LAYERS}"
        assert side.engine.counted_steps == STEPS
        assert [(row.backend, row.layers, row.note) for row in side.engine.ops] == [(backend, "0-2", "")]
        proof = f"{STEPS} decode steps in every layer, {STEPS} in the answers; calls: {backend} x{STEPS * LAYERS}"
        assert (side.side, proof) in ab_run_lines(record)


def test_what_differs_elsewhere_has_two_servers_and_their_counts_stay_apart(tmp_path: Path) -> None:
    sides = [run_config(tmp_path, selection="one.yaml", enable_prefix_caching=caching) for caching in (False, True)]
    config = AbRunConfig(a=sides[0], b=sides[1], min_blocks=BLOCKS, max_blocks=BLOCKS)
    run, record = run_ab_run(config, tmp_path / "runs", lambda line: None)
    assert record.status == "done"
    assert servers(run) == 2 and {log.parent.name for log in run.rglob("server.log")} == {"a", "b"}
    assert [side.engine.resolved["selection_calls"] for side in record.sides] == [f"of-table-0 x{STEPS * LAYERS}"] * 2


def test_a_side_that_never_ran_has_no_figure(tmp_path: Path) -> None:
    """Vllm's own path was asked for, and every call took the table's."""
    with pytest.raises(MeasurementError, match="what a asked for was never called, by the counters"):
        compare(tmp_path, None, "one.yaml", {"plugin": {"deaf": True}})
    assert "never called" in str(failed(tmp_path).failure)


def test_a_table_without_one_row_is_no_selection(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="what b asked for was never called") as caught:
        compare(tmp_path, None, "one.yaml", {"plugin": {"lists": False}})
    assert "--batch 1 --save" in caught.value.mend


def test_a_side_that_missed_steps_has_no_figure(tmp_path: Path) -> None:
    """An answer whose tokens the plugin saw only in part."""
    whole = answer([0.005] * TOKENS)
    joined = {"pieces": [*whole["pieces"][:4], [0.1, "".join(text for _, text in whole["pieces"][4:-2])]]}
    joined["pieces"] += whole["pieces"][-2:]
    with pytest.raises(MeasurementError, match=rf"what a asked for ran {4 * (BLOCKS + 1)} of its {STEPS} steps"):
        compare(tmp_path, None, "one.yaml", {"answers": [joined]})


def test_a_prefix_cache_would_mix_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefix cache would give one's prompt to the other") as caught:
        compare(tmp_path, None, "one.yaml", enable_prefix_caching=True)
    assert caught.value.mend == "set engine.enable_prefix_caching: false in both"
    assert not (tmp_path / "runs").exists()


def hashes(*now: str) -> dict[str, Any]:
    """Of two workers' parameters, all of which were loaded as x."""
    shares = [{f"layers.{layer}.weight": ["x", found] for layer, found in enumerate(now)}] * 2
    return {"posts": {"/collective_rpc": {"results": shares}}}


def test_in_a_contest_parameters_are_proven_unchanged(tmp_path: Path) -> None:
    _, record = compare(tmp_path, None, "one.yaml", hashes("x", "x", "x"), environment=CONTEST)
    assert [side.engine.resolved["selection_parameters"] for side in record.sides] == ["6 unchanged"] * 2
    _, record = compare(tmp_path, None, "one.yaml", hashes("x", "y"))
    assert "selection_parameters" not in record.sides[0].engine.resolved, "outside contests nothing is hashed"


def test_a_parameter_that_changed_is_named_and_there_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"1 parameters are not as they were loaded: layers\.1\.weight"):
        compare(tmp_path, None, "one.yaml", hashes("x", "y", "x"), environment=CONTEST)
    failed(tmp_path)


def test_a_run_of_one_selection_proves_it_too(tmp_path: Path) -> None:
    config = run_config(tmp_path, hashes("x"), selection="one.yaml", environment=CONTEST)
    _, record, _ = run_bench(config, tmp_path / "runs", lambda line: None)
    assert record.engine is not None
    assert record.engine.resolved["selection_parameters"] == "2 unchanged"
    assert record.engine.counted_steps == record.engine.answered_steps
    assert record.engine.answered_steps and record.analysis is not None
    assert not any("by its own counters" in warning for warning in record.analysis.warnings)
    steps = record.engine.answered_steps
    (counted, note) = engine_lines(record.engine.model_copy(update={"notes": ("no layer took it",)}))
    assert counted == (
        "counted", f"{steps} decode steps in every layer, {steps} in the answers; calls: of-table-0 x{steps * LAYERS}"
    )  # fmt: skip
    assert note == ("note", "no layer took it")
    config = run_config(tmp_path, hashes("y"), selection="one.yaml", environment=CONTEST)
    with pytest.raises(MeasurementError, match="not as they were loaded"):
        run_bench(config, tmp_path / "runs", lambda line: None)


def test_a_server_that_keeps_its_counters_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"does not hand over its counters: .*404"):
        compare(tmp_path, None, "one.yaml", {"posts": {}})
    failed(tmp_path)


def engine(**settings: Any) -> VllmServerEngine:
    return VllmServerEngine(kind="vllm-server", **settings)


def test_the_places_of_both() -> None:
    of_both = partial(selections_of_both, device=DeviceInfo(kind="cpu", name="c"))
    assert of_both(engine(), engine(selection="x")) == Selections(("x",), (-1, 0))
    two = os.pathsep.join(("x", "y"))
    assert of_both(engine(selection=two), engine(selection="z")) == Selections(("x", "y", "z"), (0, 2))
    assert of_both(engine(selection="x"), engine(selection="x")) is None
    assert of_both(engine(seed=1), engine(selection="x")) is None


@pytest.mark.parametrize("elsewhere", [{"executor": "ray"}, {"extra_args": {"nnodes": 2, "node_rank": 0}}])
def test_workers_on_other_machines_are_not_switched(elsewhere: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no switch reaches them"):
        selections_of_both(engine(**elsewhere), engine(**elsewhere, selection="x"), DeviceInfo(kind="cpu", name="c"))


@pytest.mark.parametrize("kind", ["cuda", "rocm", "dcu"])
def test_graphs_of_a_gpu_are_refused_before_anything_is_loaded(kind: Any) -> None:
    card = DeviceInfo(kind=kind, name="c")
    for graph in (None, "full", "piecewise"):
        with pytest.raises(ConfigError, match="captured graphs keep the selection"):
            selections_of_both(engine(graph=graph), engine(graph=graph, selection="x"), card)
    assert selections_of_both(engine(graph="compiled"), engine(graph="compiled", selection="x"), card) is not None
