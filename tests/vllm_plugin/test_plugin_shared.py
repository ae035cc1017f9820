"""Counters and the switch: exact across processes, at any moment, however a process ends."""

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ConfigError, MeasurementError
from harness.specs.engine import EngineReport
from harness.specs.plugin import PluginPath, PluginReport
from harness.vllm_plugin.report import counted_since, counted_steps, of_variant, op_choices, selected_steps, summary
from harness.vllm_plugin.shared import (
    MAX_PATHS,
    active_file,
    new_counters,
    read_reports,
    shared_integers,
    switch,
    write_report,
)
from harness.vllm_plugin.variant import Variant


def path(layer: str, m: int | None, backend: str = "cpu-gemv", **changes: object) -> PluginPath:
    read = None if backend == "vllm" else 4096
    return PluginPath(
        op="linear",
        layer=layer,
        role="qkv",
        variant=0,
        m=m,
        shape=f"{m or 'm'}x32x64",
        backend=backend,
        contest_legal=True,
        read_bytes=read,
    ).model_copy(update=changes)


def report(*paths: PluginPath, pid: int = 7, tables: tuple[str, ...] = ("abc",)) -> PluginReport:
    return PluginReport(pid=pid, tables=tables, kept_bytes=5, paths=paths)


def test_a_switch_is_one_number_that_others_read(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    seen = shared_integers(active_file(folder), 1)
    assert seen[0] == 0
    for variant in (1, -1, 0):
        switch(folder, variant, 2)
        assert seen[0] == variant
        assert struct.unpack("q", active_file(folder).read_bytes()) == (variant,)
    for variant in (-2, 2):
        with pytest.raises(ConfigError, match=f"no variant {variant}"):
            switch(folder, variant, 2)
    assert seen[0] == 0


def test_a_process_that_is_killed_leaves_its_counts(tmp_path: Path) -> None:
    write_report(tmp_path, report(path("a", 1), path("b", 1)))
    code = (
        "import os, signal, sys; from pathlib import Path; from harness.vllm_plugin.shared import new_counters\n"
        "counts = new_counters(Path(sys.argv[1]), 7); counts[0] += 3; counts[1] += 4\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (found,) = read_reports(tmp_path)
    assert [path.num_calls for path in found.paths] == [3, 4]


def test_a_new_model_begins_at_zero(tmp_path: Path) -> None:
    before = new_counters(tmp_path, os.getpid())
    before[0] = 5
    after = new_counters(tmp_path, os.getpid())
    before[0] += 1
    assert after[0] == 0
    assert len(after) == MAX_PATHS


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="HARNESS_PLUGIN_REPORT"):
        shared_integers(tmp_path / "file" / "active", 1)


def test_what_ran_is_one_row_a_shape_and_path() -> None:
    """Of two workers, each with its share of every layer."""
    layers = [path(f"model.layers.{layer}.self_attn.qkv_proj", 1, num_calls=9) for layer in (0, 1, 3)]
    never = path("model.layers.2.self_attn.qkv_proj", 1)
    prompt = path("model.layers.0.self_attn.qkv_proj", None, "vllm", num_calls=2)
    odd = path("lm_head", 2, "vllm", num_calls=1, role="lm_head", reason="the table does not list this problem")
    decode, prefill, fallen = op_choices([report(*layers, never, prompt, odd)] * 2)
    assert (decode.backend, decode.layers, decode.num_calls) == ("cpu-gemv", "0-1,3", 3)
    assert (decode.shape, decode.phase, decode.batch, decode.selected) == ("1x32x64", "decode", 1, True)
    assert (prefill.shape, prefill.phase, prefill.backend, prefill.fallback_from) == (
        "mx32x64",
        "prefill",
        "vllm",
        None,
    )
    assert (fallen.layers, fallen.batch, fallen.selected) == ("model", 2, False)
    assert fallen.fallback_reason == "the table does not list this problem"
    assert summary([report(*layers, never, prompt, odd)] * 2) == {
        "selection": "abc", "selection_calls": "cpu-gemv x54, vllm x6", "selection_kept_bytes": 10,
    }  # fmt: skip


def test_variants_are_told_apart() -> None:
    both = [path("lm_head", 1, num_calls=1, variant=variant) for variant in (0, 1)]
    assert [row.note for row in op_choices([report(*both, tables=("a", "b"))])] == ["variant 0", "variant 1"]


def test_a_variants_steps_are_those_of_its_slowest_layer() -> None:
    """Of every process; what fell back, other rows and other variants do not count."""
    first = [path("a", 1, num_calls=9), path("b", 1, num_calls=8), path("a", 2, num_calls=1)]
    fallen = path("c", 1, "vllm", num_calls=2, reason="the table does not list this problem")
    off = [path("a", 1, "vllm", num_calls=5, variant=-1), path("b", None, "vllm", num_calls=3, variant=-1)]
    reports = [report(*first, fallen, *off), report(path("a", 1, num_calls=7), *off, pid=8)]
    assert counted_steps(of_variant(reports, 0)) == 7
    assert counted_steps(of_variant(reports, -1)) == 5
    assert counted_steps(of_variant(reports, 1)) == 0
    assert summary(of_variant(reports, -1))["selection"] == "off"


def test_steps_of_a_table_are_those_of_the_rows_that_run_most() -> None:
    """A batch of four beside the prompts' last rows; of every layer that takes four from the table, the fewest."""
    first = [path("a", 4, num_calls=9), path("b", 4, num_calls=8), path("lm_head", 1, num_calls=3), path("c", None)]
    elsewhere = path("c", 4, "vllm", num_calls=2, reason="the table does not list this problem")
    off = path("a", 4, "vllm", num_calls=5, variant=-1)
    assert selected_steps([report(*first, elsewhere, off), report(path("a", 4, num_calls=7), pid=8)]) == 7
    fallen = path("d", 4, "vllm", num_calls=9, reason="gpu-gemv: it is a GPU kernel")
    assert selected_steps([report(*first, fallen)]) == 3, "the head's alone"
    assert selected_steps([report(off)]) == selected_steps([]) == 0


def test_a_listed_row_that_fell_back_is_no_step(tmp_path: Path) -> None:
    """And a comparison of it is none: the other layers' counts would hide it."""
    ran, fallen = path("a", 1, num_calls=9), path("b", 1, "vllm", num_calls=9, reason="gpu-gemv: it is a GPU kernel")
    elsewhere = path("b", 1, "vllm", num_calls=9, reason="the table does not list this problem")
    assert counted_steps([report(ran, elsewhere)]) == 9
    assert counted_steps([report(ran, fallen)]) == 0
    plain = EngineReport(kind="vllm", dtype="BF16")
    new_counters(tmp_path, 7)
    write_report(tmp_path, report(ran, fallen))
    compared, alone = Variant(tmp_path, place=0), Variant(tmp_path)
    shared_integers(tmp_path / "7.counts", MAX_PATHS)[1] = 9
    with pytest.raises(MeasurementError, match="own path ran what the selection lists of qkv: gpu-gemv: it is a GPU"):
        compared.completed(plain)
    assert [row.fallback_reason for row in alone.completed(plain).ops] == ["gpu-gemv: it is a GPU kernel"]


def test_what_ran_before_a_server_was_ready_is_nobodys() -> None:
    before = report(path("a", 1, num_calls=4), path("b", 1))
    now = report(path("a", 1, num_calls=9), path("b", 1, num_calls=5), path("b", None, "vllm", num_calls=2))
    assert [found.num_calls for found in counted_since(before, now).paths] == [5, 5, 2]
    assert counted_since(None, now) == now
