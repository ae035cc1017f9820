"""Attention on a GPU by backends of ours, over the cache that vLLM's own backend there writes.

Both keep a place's keys as a row, so that each step may be attended by either. In a decode step how far a request has
come is read on the card: one launch serves all requests, and a captured graph replays it. Requests of a step with a
prompt are attended one by one, over copies of their keys, by lengths that the host has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from harness.backends.base import BlockCache
from harness.errors import UnavailableError
from harness.specs.plugin import STOCK, PluginPath
from harness.specs.problem import AttentionProblem
from harness.specs.selection import SelectionEntry
from harness.vllm_plugin.attention import OnGathered
from harness.vllm_plugin.attentions import Request
from harness.vllm_plugin.moves import Move, mover
from harness.vllm_plugin.paths import Paths
from harness.vllm_plugin.shared import OFF

NOT_BY_REQUEST = "it does not read a server's cache (select gpu-decode or triton-decode)"


class GpuPath(NamedTuple):
    """Who attends."""

    place: int
    """Of its counter."""
    backend: Any | None
    """None: vLLM's own."""


@dataclass(frozen=True)
class GpuLayer:
    """A layer whose heads a table lists for one query."""

    name: str
    decode: AttentionProblem
    """max_context: as far as a request may come."""
    prompt: AttentionProblem
    """As many queries as vLLM puts into a step at most."""
    paths: dict[tuple[int, bool], GpuPath] = field(default_factory=dict)
    """By variant and whether it is a decode step."""
    moves: dict[tuple[int, ...], Move] = field(default_factory=dict)
    """Launches bound before, by what can't be moved."""


class GpuAttentions:
    """Every layer's paths, by variant."""

    def __init__(self, paths: Paths, write: Callable[[], None]) -> None:
        """write: called when paths were added."""
        self._paths, self._write = paths, write

    def add(self, name: str, decode: AttentionProblem, prompt: AttentionProblem) -> GpuLayer:
        """Every variant's backends are made here: none of that is left to a request."""
        layer = GpuLayer(name, decode, prompt)
        for variant in range(OFF, len(self._paths.tables)):
            chosen = self._paths.chosen("attention", variant, decode)
            if chosen is not None and not isinstance(chosen, str) and not chosen[1].takes_requests:
                chosen = f"{chosen[0].backend}: {NOT_BY_REQUEST}"
            layer.paths[variant, True] = self._add(layer, variant, True, chosen)
            if chosen is not None and not isinstance(chosen, str):  # prompts of vLLM's own are no news where all is
                chosen = self._paths.chosen("attention", variant, prompt)
            layer.paths[variant, False] = self._add(layer, variant, False, chosen)
        self._write()
        return layer

    def _add(
        self, layer: GpuLayer, variant: int, is_decode: bool, chosen: tuple[SelectionEntry, Any] | str | None
    ) -> GpuPath:
        entry, backend = (None, None) if chosen is None or isinstance(chosen, str) else chosen
        problem = layer.decode
        place = self._paths.add(PluginPath(
            op="attention", layer=layer.name, role="decode" if is_decode else "prefill", variant=variant,
            m=1 if is_decode else None, backend=STOCK if entry is None else entry.backend,
            shape=f"{problem.num_heads}/{problem.num_kv_heads} heads x {problem.head_dim}",
            parameters={} if entry is None else entry.parameters,
            contest_legal=backend is None or backend.contest_legal,
            read_bytes=None,  # no weight is read, and the cache's bytes grow with the context
            reason=chosen if isinstance(chosen, str) else None,
        ))  # fmt: skip
        return GpuPath(place, backend)

    def decode(self, layer: GpuLayer, q: Tensor, cache: BlockCache, contexts: Tensor, out: Tensor) -> bool:
        """One query of each request, as `AttentionBackend.bind_requests` takes them; False: vLLM's own shall. Counted
        either way."""
        place, backend = self._path(layer, True)
        if backend is None:
            self._paths.counts.add(place)
            return False
        calls = self._paths.counts.on_card(place)
        if calls is None:
            self._paths.counts.add(place)
        moved = q, cache.keys, cache.values, cache.table, contexts, out
        key = (place, len(q), *cache.keys.stride(), cache.table.stride(0))
        move = layer.moves.get(key)
        if move is None:
            launch = backend.bind_requests(q, cache, contexts, out, calls, layer.decode)
            move = mover(launch, *moved)
            if move is None:
                launch()
                return True
            layer.moves[key] = move
        move(*moved)
        return True

    def prompts(
        self, layer: GpuLayer, requests: Callable[[], Sequence[Request]], q: Tensor, cache: BlockCache,
        contexts: Tensor, out: Tensor,
    ) -> bool:  # fmt: skip
        """A step with more than one query of some request; False: vLLM's own shall, counted once. requests: asks the
        card for them, which waits for it."""
        place, backend = self._path(layer, False)
        if backend is None:
            self._paths.counts.add(place)
            return False
        for request in requests():
            own = slice(request.number, request.number + 1)
            if request.num_rows == 1:
                table = BlockCache(cache.keys, cache.values, cache.table[own])
                self.decode(layer, q[request.rows], table, contexts[own], out[request.rows])
            else:
                self._paths.counts.add(place)
                table = BlockCache(cache.keys, cache.values, request.table)
                OnGathered(backend, layer.prompt)(q[request.rows], table, request.filled, out[request.rows])
        return True

    def _path(self, layer: GpuLayer, is_decode: bool) -> GpuPath:
        path = layer.paths.get((self._paths.variant, is_decode))
        if path is None:
            raise UnavailableError(f"there is no variant {self._paths.variant}", "switch to one of HARNESS_SELECTION's")
        return path


def rows_of_cache(kv_cache: Tensor, head_dim: int, axis: int) -> tuple[Tensor, Tensor]:
    """Keys and values [blocks, num_kv_heads, block_size, head_dim], as views of vLLM 0.32's [blocks, num_kv_heads,
    block_size, 2 * head_dim] or of 0.18's [blocks, block_size, num_kv_heads, head_dim] with an axis for the two."""
    if kv_cache.dim() == 4:
        return kv_cache[..., :head_dim], kv_cache[..., head_dim:]
    keys, values = kv_cache.unbind(axis)
    return keys.transpose(1, 2), values.transpose(1, 2)
