"""Decode attention on a GPU, over the cache that vLLM's own backend there writes, and reads for prompts.

Both keep a place's keys as a row, so that each step may be attended by either. How far a request has come is read on
the card: one launch serves all requests of a step, and a captured graph replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from harness.backends.base import BlockCache
from harness.errors import UnavailableError
from harness.specs.plugin import STOCK, PluginPath
from harness.specs.problem import AttentionProblem
from harness.vllm_plugin.paths import Paths
from harness.vllm_plugin.shared import OFF
from harness.vllm_plugin.streams import Move, mover


@dataclass(frozen=True)
class DecodeLayer:
    """A layer whose heads a table lists for one query."""

    name: str
    problem: AttentionProblem
    """max_context: as far as a request may come."""
    paths: dict[int, tuple[int, Any | None]] = field(default_factory=dict)
    """variant: (counter, backend or None for vLLM's own)"""
    moves: dict[tuple[int, ...], Move] = field(default_factory=dict)
    """Launches bound before, by what can't be moved."""


class Decodes:
    """Every layer's paths, by variant."""

    def __init__(self, paths: Paths, write: Callable[[], None]) -> None:
        """write: called when paths were added."""
        self._paths, self._write = paths, write

    def lists(self, problem: AttentionProblem) -> bool:
        """Whether any table does."""
        return any(table.find("attention", problem) for table in self._paths.tables)

    def add(self, name: str, problem: AttentionProblem) -> DecodeLayer:
        """Every variant's backends are made here: none of that is left to a request."""
        layer = DecodeLayer(name, problem)
        for variant in range(OFF, len(self._paths.tables)):
            layer.paths[variant] = self._path(layer, variant)
        self._write()
        return layer

    def _path(self, layer: DecodeLayer, variant: int) -> tuple[int, Any | None]:
        chosen = self._paths.chosen("attention", variant, layer.problem)
        if chosen is not None and not isinstance(chosen, str) and not chosen[1].takes_requests:
            chosen = f"{chosen[0].backend}: it does not read a server's cache (select gpu-decode or triton-decode)"
        if chosen is None or isinstance(chosen, str):
            return self._paths.add(_row(layer, variant, STOCK, reason=chosen)), None
        entry, backend = chosen
        row = _row(layer, variant, entry.backend, entry.parameters, backend.contest_legal)
        return self._paths.add(row), backend

    def attend(self, layer: DecodeLayer, q: Tensor, cache: BlockCache, contexts: Tensor, out: Tensor) -> bool:
        """One query of each request, as `AttentionBackend.bind_requests` takes them; False: vLLM's own shall. Counted
        either way."""
        path = layer.paths.get(self._paths.variant)
        if path is None:
            raise UnavailableError(f"there is no variant {self._paths.variant}", "switch to one of HARNESS_SELECTION's")
        place, backend = path
        if backend is None:
            self._paths.counts.add(place)
            return False
        calls = self._paths.counts.on_card(place)
        if calls is None:
            self._paths.counts.add(place)
        key = (place, len(q), cache.keys.data_ptr(), cache.table.stride(0))
        if key not in layer.moves:
            launch = backend.bind_requests(q, cache, contexts, out, calls, layer.problem)
            move = mover(launch, q, cache.table, contexts, out)
            if move is None:
                launch()
                return True
            layer.moves[key] = move
        layer.moves[key](q, cache.table, contexts, out)
        return True


def rows_of_cache(kv_cache: Tensor, head_dim: int, axis: int) -> tuple[Tensor, Tensor]:
    """Keys and values [blocks, num_kv_heads, block_size, head_dim], as views of vLLM 0.32's [blocks, num_kv_heads,
    block_size, 2 * head_dim] or of 0.18's [blocks, block_size, num_kv_heads, head_dim] with an axis for the two."""
    if kv_cache.dim() == 4:
        return kv_cache[..., :head_dim], kv_cache[..., head_dim:]
    keys, values = kv_cache.unbind(axis)
    return keys.transpose(1, 2), values.transpose(1, 2)


def _row(
    layer: DecodeLayer, variant: int, backend: str, parameters: Any = None, contest_legal: bool = True,
    reason: str | None = None,
) -> PluginPath:  # fmt: skip
    """No weight is read; the cache's bytes grow with the context."""
    problem = layer.problem
    return PluginPath(
        op="attention", layer=layer.name, role="decode", variant=variant, m=1,
        shape=f"{problem.num_heads}/{problem.num_kv_heads} heads x {problem.head_dim}", backend=backend,
        parameters=parameters or {}, contest_legal=contest_legal, read_bytes=None, reason=reason,
    )  # fmt: skip
