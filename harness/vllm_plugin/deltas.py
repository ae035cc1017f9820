"""A model's gated delta layers, their paths through our backends, and what the op looks into when it runs."""

from __future__ import annotations

from collections.abc import Callable

from harness.specs.plugin import STOCK, PluginPath
from harness.vllm_plugin.delta import Delta, Key, Step, Tokens, bound_step
from harness.vllm_plugin.paths import Paths

PROMPT = 0
"""In the place of a step's requests."""


class Deltas:
    """Layers, by vLLM's name."""

    def __init__(self, paths: Paths, write: Callable[[], None]) -> None:
        """write: called when paths were added."""
        self._paths, self._write = paths, write
        self._by_name: dict[str, Delta] = {}

    @property
    def kept_bytes(self) -> int:
        """Beside what vLLM alone would keep."""
        return sum(delta.kept_bytes for delta in self._by_name.values())

    def find(self, name: str) -> Delta | None:
        """None for a layer that was not added."""
        return self._by_name.get(name)

    def add(self, delta: Delta) -> None:
        """Also builds the kernels that tables name for it: none of that is left to a request."""
        self._by_name[delta.name] = delta
        for variant, _ in enumerate(self._paths.tables):
            self._paths.chosen("linear-attention", variant, delta.problem)
        self._paths.ops.add("linear-attention")
        self._write()

    def run(self, delta: Delta, tokens: Tokens | None, stock: Callable[[], None]) -> None:
        """A call of a layer by the path that the active variant has for it. tokens: None where a prompt is in the step;
        stock: the same call by vLLM itself."""
        key = self._paths.variant, PROMPT if tokens is None else len(tokens.slots)
        path = delta.paths.get(key) or self._add_path(delta, key, tokens)
        self._paths.counts.add(path[0])
        if tokens is None or path[1] is None:
            stock()
        else:
            path[1](tokens)

    def _add_path(self, delta: Delta, key: Key, tokens: Tokens | None) -> tuple[int, Step | None]:
        row, step = self._path(delta, key, tokens)
        delta.paths[key] = self._paths.add(row), step
        self._write()
        return delta.paths[key]

    def _path(self, delta: Delta, key: Key, tokens: Tokens | None) -> tuple[PluginPath, Step | None]:
        variant, num_requests = key
        chosen = self._paths.chosen("linear-attention", variant, delta.problem)
        if chosen is None or tokens is None:
            return _stock_row(delta, key, None), None
        if isinstance(chosen, str):
            return _stock_row(delta, key, chosen), None
        entry, backend = chosen
        unfit = delta.unfit or _unfit(tokens)
        if not backend.norm_is_optional:
            unfit = f"{entry.backend}: its launch ends with the norm, which vLLM does itself (use cpu-recurrent)"
        if unfit:
            return _stock_row(delta, key, unfit), None
        row = PluginPath(
            op="linear-attention", layer=delta.name, role=entry.role, variant=variant, m=num_requests,
            shape=delta.shape, backend=entry.backend, parameters=entry.parameters,
            contest_legal=backend.contest_legal, read_bytes=num_requests * backend.read_bytes(delta.problem),
        )  # fmt: skip
        return row, bound_step(backend, delta)

    def close(self) -> None:
        """Lets go of weights and state."""
        self._by_name.clear()


def _unfit(tokens: Tokens) -> str | None:
    whole = tokens.conv[0].is_contiguous() and tokens.recurrent[0].is_contiguous()
    return None if whole else "a request's state is not contiguous in vLLM's cache"


def _stock_row(delta: Delta, key: Key, reason: str | None) -> PluginPath:
    variant, num_requests = key
    return PluginPath(
        op="linear-attention", layer=delta.name, role="prefill" if num_requests == PROMPT else "decode",
        variant=variant, m=num_requests or None, shape=delta.shape, backend=STOCK,
        contest_legal=not delta.packed_by_vllm, read_bytes=None, reason=reason,
    )  # fmt: skip
