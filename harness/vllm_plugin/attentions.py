"""A model's attention layers, and who attends in each: a backend that a table lists, or vLLM itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from harness.backends.base import BlockCache, Executor
from harness.backends.launch import KERNEL_DTYPES
from harness.backends.registry import attention_backends
from harness.errors import UnavailableError
from harness.specs.plugin import STOCK, PluginPath
from harness.specs.problem import AttentionProblem
from harness.specs.selection import SelectionEntry
from harness.vllm_plugin.attention import Attend, OnBlocks, OnGathered, PlaceWriter, keys_and_values
from harness.vllm_plugin.paths import Paths
from harness.vllm_plugin.shared import OFF

FOR_PROMPTS = "torch-sdpa"
NO_PROMPT = "the table lists no prompt's attention, and vLLM's own can't read the cache that our decode step writes"


class Request(NamedTuple):
    """One request's share of a step."""

    rows: slice
    """Of the step's queries."""
    filled: int
    """Places of its cache, those of these rows included."""
    table: Tensor
    """int32: its blocks."""
    number: int = 0
    """Among the step's."""

    @property
    def num_rows(self) -> int:
        return int(self.rows.stop - self.rows.start)


def step_requests(metadata: Any) -> list[Request]:
    """Those that have rows in a step, of vLLM's metadata; waits for a card whose tensors they are."""
    begins, filled = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
    return [
        Request(slice(begin, end), filled[number], metadata.block_table[number], number)
        for number, (begin, end) in enumerate(pairwise(begins))
        if end > begin
    ]


@dataclass(frozen=True)
class AttentionLayer:
    """A layer whose heads a table lists."""

    name: str
    decode: AttentionProblem
    """One query; max_context: as far as a request may come."""
    prompt: AttentionProblem
    """As many queries as vLLM puts into a step at most."""
    writer: PlaceWriter
    paths: dict[tuple[int, bool], tuple[int, Attend | None]] = field(default_factory=dict)
    """(variant, one query): (counter, ours or None for vLLM's own)"""


class Attentions:
    """Every layer's paths, by variant."""

    def __init__(self, paths: Paths, executor: Executor, write: Callable[[], None], keeps_prefixes: bool) -> None:
        """write: called when paths were added. keeps_prefixes: a request may find keys that an earlier one left."""
        self._paths, self._executor, self._write, self._keeps_prefixes = paths, executor, write, keeps_prefixes
        self._wrote: bool | None = None

    def add(self, name: str, decode: AttentionProblem, prompt: AttentionProblem) -> AttentionLayer:
        """Every variant's backends are made here: none of that is left to a request."""
        layer = AttentionLayer(name, decode, prompt, PlaceWriter(self._executor))
        for variant in range(OFF, len(self._paths.tables)):
            self._add_paths(layer, variant)
        self._write()
        return layer

    def _add_paths(self, layer: AttentionLayer, variant: int) -> None:
        chosen = self._paths.chosen("attention", variant, layer.decode)
        if layer.decode.dtype not in KERNEL_DTYPES:
            chosen = f"no CPU kernel writes a cache of {layer.decode.dtype}"
        if chosen is None or isinstance(chosen, str):
            for is_decode in (True, False):
                row = _row(layer, variant, is_decode, STOCK, reason=chosen)
                layer.paths[variant, is_decode] = self._paths.add(row), None
            return
        self._add(layer, variant, True, *chosen)
        prompt = self._paths.chosen("attention", variant, layer.prompt)
        if prompt is None or isinstance(prompt, str):
            backend = attention_backends.get(FOR_PROMPTS)(self._executor)
            row = _row(layer, variant, False, FOR_PROMPTS, contest_legal=True, reason=prompt and NO_PROMPT)
            layer.paths[variant, False] = self._paths.add(row), OnGathered(backend, layer.prompt)
        else:
            self._add(layer, variant, False, *prompt)

    def _add(
        self, layer: AttentionLayer, variant: int, is_decode: bool, entry: SelectionEntry, backend: Any
    ) -> None:  # fmt: skip
        attend = OnBlocks if is_decode and backend.takes_blocks else OnGathered
        row = _row(
            layer, variant, is_decode, entry.backend, parameters=entry.parameters, contest_legal=backend.contest_legal
        )
        problem = layer.decode if is_decode else layer.prompt
        layer.paths[variant, is_decode] = self._paths.add(row), attend(backend, problem)

    def is_ours(self, layer: AttentionLayer) -> bool:
        """Whether the active variant attends by a backend of ours. UnavailableError where it was switched although
        requests may find keys that the other side wrote."""
        variant = self._paths.variant
        if (variant, True) not in layer.paths:
            self._paths.chosen("attention", variant, layer.decode)  # raises: there is no such variant
        ours = layer.paths[variant, True][1] is not None
        if self._keeps_prefixes and self._wrote not in (None, ours):
            raise UnavailableError(
                "vLLM's attention and ours write keys in other layouts, and prefix caching may mix them",
                "switch prefix caching off to compare the two in one process",
            )
        self._wrote = ours
        return ours

    def write(self, layer: AttentionLayer, keys: Tensor, values: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
        """New places; see PlaceWriter."""
        layer.writer(keys, values, keys_and_values(kv_cache), slots)

    def count(self, layer: AttentionLayer, requests: Sequence[Request]) -> None:
        """What vLLM's own path is about to do."""
        for request in requests:
            self._paths.counts.add(self._path(layer, request)[0])

    def attend(
        self, layer: AttentionLayer, requests: Sequence[Request], q: Tensor, kv_cache: Tensor, out: Tensor
    ) -> None:
        """q and out [rows, num_heads, head_dim]; each request by itself."""
        keys, values = keys_and_values(kv_cache)
        for request in requests:
            place, attend = self._path(layer, request)
            if attend is None:
                raise UnavailableError("the variant was switched within a step", "switch it between requests")
            self._paths.counts.add(place)
            attend(q[request.rows], BlockCache(keys, values, request.table), request.filled, out[request.rows])

    def _path(self, layer: AttentionLayer, request: Request) -> tuple[int, Attend | None]:
        return layer.paths[self._paths.variant, request.num_rows == 1]


def _row(
    layer: AttentionLayer, variant: int, is_decode: bool, backend: str, contest_legal: bool = True, **more: Any
) -> PluginPath:  # fmt: skip
    """No weight is read; the cache's bytes grow with the context."""
    problem = layer.decode
    return PluginPath(
        op="attention", layer=layer.name, role="decode" if is_decode else "prefill", variant=variant,
        m=1 if is_decode else None, shape=f"{problem.num_heads}/{problem.num_kv_heads} heads x {problem.head_dim}",
        backend=backend, contest_legal=contest_legal, read_bytes=None, **more,
    )  # fmt: skip
