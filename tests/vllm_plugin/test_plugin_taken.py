"""A selection that some worker does not take is not measured."""

from pathlib import Path

import pytest

from harness.engines.vllm_setup import Selections
from harness.errors import UnavailableError
from harness.specs.plugin import PluginPath, PluginReport
from harness.specs.vllm import VllmOptions
from harness.vllm_plugin.settings import REPORT
from harness.vllm_plugin.shared import new_counters, write_report

PATH = PluginPath(
    op="linear", layer="model.layers.0.o_proj", role="o", variant=0, m=1, shape="1x8x8", backend="torch",
    contest_legal=True, read_bytes=128,
)  # fmt: skip


def reported(folder: Path, *workers: bool) -> dict[str, str]:
    """Of one process each, with or without a layer of ours; its variables."""
    folder.mkdir()
    for pid, takes in enumerate(workers, start=1):
        new_counters(folder, pid)
        write_report(folder, PluginReport(pid=pid, tables=("f",), kept_bytes=0, paths=(PATH,) * takes))
    return {REPORT: str(folder)}


@pytest.mark.parametrize("workers", [(), (True,), (True, False)])
def test_a_worker_without_the_selection_ends_the_run(tmp_path: Path, workers: tuple[bool, ...]) -> None:
    variables = reported(tmp_path / "r", *workers)
    with pytest.raises(UnavailableError, match=f"{sum(workers)} of vLLM's 2 workers take something"):
        Selections(("t.yaml",)).variants(variables, None, VllmOptions(tensor_parallel=2))


def test_all_that_can_be_seen_take_it(tmp_path: Path) -> None:
    """Workers of other machines leave their reports there."""
    both, one = reported(tmp_path / "a", True, True), reported(tmp_path / "b", True)
    selections = Selections(("t.yaml",))
    assert len(selections.variants(both, None, VllmOptions(tensor_parallel=2))) == 1
    assert len(selections.variants(one, None, VllmOptions(tensor_parallel=2, executor="ray"))) == 1
    assert len(selections.variants(one, None, VllmOptions())) == 1


def test_without_a_selection_nobody_is_asked(tmp_path: Path) -> None:
    assert len(Selections(()).variants(reported(tmp_path / "r"), None, VllmOptions(tensor_parallel=2))) == 1
