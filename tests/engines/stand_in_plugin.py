"""Our plugin in the stand-in for vLLM: layers that calculate nothing and count a step's calls as the plugin's do."""

import os
from pathlib import Path
from typing import Any

from harness.specs.plugin import PluginPath, PluginReport
from harness.vllm_plugin.settings import REPORT, SELECTION
from harness.vllm_plugin.shared import OFF, active_file, new_counters, shared_integers, write_report

LAYERS = 3
WARM_UP = 8
"""Tokens before it is ready, as vLLM runs its model to see what memory it takes."""


class Plugin:
    """Of one process. `deaf` stays at the first variant; `lists` is what the tables have at one row."""

    def __init__(self, deaf: bool = False, lists: bool = True) -> None:
        folder, pid = Path(os.environ[REPORT]), os.getpid()
        tables = os.environ[SELECTION].split(os.pathsep)
        self._active = shared_integers(active_file(folder), 1)
        self._counts, self._deaf = new_counters(folder, pid), deaf
        self._paths = [_path(place, layer, lists) for place in range(OFF, len(tables)) for layer in range(LAYERS)]
        write_report(
            folder, PluginReport(pid=pid, tables=tuple(tables), kept_bytes=0, paths=tuple(self._paths), ops=("linear",))
        )
        self.decode(WARM_UP)

    def decode(self, num_tokens: int) -> None:
        """One step fewer: the first token is the prompt's."""
        active = 0 if self._deaf else self._active[0]
        for row, path in enumerate(self._paths):
            self._counts[row] += (num_tokens - 1) * (path.variant == active)


def _path(place: int, layer: int, lists: bool) -> PluginPath:
    is_listed = lists and place != OFF
    return PluginPath(
        op="linear", layer=f"model.layers.{layer}.o_proj", role="o", variant=place, m=1, shape="1x8x8",
        backend=f"of-table-{place}" if is_listed else "vllm", contest_legal=True,
        read_bytes=128 if is_listed else None,
        reason=None if is_listed or place == OFF else "the table does not list this problem",
    )  # fmt: skip


def counting(true: Any, plugin: Plugin) -> Any:
    """The handler's answer, before which the plugin counts its tokens."""

    def answer(self: Any, of: dict[str, Any], sent_s: list[float]) -> None:
        plugin.decode(len(of["pieces"]) - 2)  # behind them come usage and end
        true(self, of, sent_s)

    return answer
