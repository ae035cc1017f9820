"""A model's linear layers, their paths through our backends, and what the op looks into when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from harness.errors import UnavailableError
from harness.specs.plugin import STOCK, PluginPath
from harness.specs.problem import LinearProblem
from harness.specs.selection import SelectionEntry
from harness.vllm_plugin.audit import tensor_hash
from harness.vllm_plugin.linear import Key, Linear, LinearPath, bound_product
from harness.vllm_plugin.paths import Paths

SHARED = "another layer has the same weight, and multiplies by it"
UNEXPECTED_BIAS = "vLLM passes a bias where the layer has none, or none where it has one"


class Linears:
    """Products, by the address of their weight."""

    def __init__(self, paths: Paths, write: Callable[[], None]) -> None:
        """write: called when paths were added."""
        self._paths, self._write = paths, write
        self._by_address: dict[int, Linear] = {}
        self._packed: dict[tuple[int, int], Any] = {}
        self.unlisted: set[str] = set()
        """Roles of those in the model that no table lists: vLLM's own path runs there, uncounted."""
        self.kept_bytes = 0
        """Beside what vLLM alone would keep: originals of weights that it packs, backends' own layouts."""

    def largest(self, n: int, k: int, dtype: str) -> int:
        """Rows that any table lists at most for a weight of this shape; 0: none lists it."""
        problems = [entry.problem for table in self._paths.tables for entry in table.entries]
        shape = n, k, dtype
        return max((p.m for p in problems if isinstance(p, LinearProblem) and (p.n, p.k, p.dtype) == shape), default=0)

    def add(self, linear: Linear) -> None:
        """Prepares every backend that a table names for it: none of that is left to a request. A head takes over from
        the embedding that it shares its weight with."""
        before = self._by_address.get(linear.weight.data_ptr())
        if before is None:
            self.kept_bytes += linear.kept_bytes
        else:
            for path in before.paths.values():
                self._paths.retire(path.place, SHARED)
        self._by_address[linear.weight.data_ptr()] = linear
        for variant, table in enumerate(self._paths.tables):
            for entry in table.entries:
                if entry.problem == linear.problem(entry.problem.m):
                    self._add_path(linear, (variant, entry.problem.m, linear.bias is None))
        self._write()

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """By the path that the active variant has for this layer and number of rows."""
        layer = self._by_address.get(weight.data_ptr())
        if layer is None:
            raise UnavailableError(
                "a weight is not where it was loaded, or is another model's", "no sleep mode; one model in a process"
            )
        rows = x.numel() // x.shape[-1]
        if rows == 0:
            return x.new_empty((*x.shape[:-1], weight.shape[0]))
        key = self._paths.variant, min(rows, layer.largest + 1), bias is None
        path = layer.paths.get(key)
        if path is None:
            path = self._add_path(layer, key)
            self._write()
        if not path.counts_itself:
            self._paths.counts.add(path.place)
        return path.run(x, bias)

    def _add_path(self, linear: Linear, key: Key) -> LinearPath:
        chosen = self._chosen(linear, key)
        if chosen is None or isinstance(chosen, str):
            path = LinearPath(self._paths.add(_stock_row(linear, key, chosen)), linear.stock, False)
        else:
            path = self._bound(linear, key, *chosen)
        linear.paths[key] = path
        return path

    def _chosen(self, linear: Linear, key: Key) -> tuple[SelectionEntry, Any] | str | None:
        """As Paths.chosen."""
        variant, m, no_bias = key
        chosen = self._paths.chosen("linear", variant, linear.problem(m))
        if chosen is None or m > linear.largest:
            return None
        return chosen if isinstance(chosen, str) or no_bias == (linear.bias is None) else UNEXPECTED_BIAS

    def _bound(self, linear: Linear, key: Key, entry: SelectionEntry, backend: Any) -> LinearPath:
        variant, m, _ = key
        packed = self._prepared(backend, linear, linear.problem(m))
        place = self._paths.add(PluginPath(
            op="linear", layer=linear.name, role=entry.role, variant=variant, m=m, shape=f"{m}x{linear.n}x{linear.k}",
            backend=entry.backend, parameters=entry.parameters, contest_legal=backend.contest_legal,
            read_bytes=backend.read_bytes(packed, m),
        ))  # fmt: skip
        calls = self._paths.counts.on_card(place) if backend.counts_calls else None
        return LinearPath(place, bound_product(backend, packed, linear, m, calls), calls is not None)

    def _prepared(self, backend: Any, linear: Linear, problem: LinearProblem) -> Any:
        key = linear.weight.data_ptr(), id(backend)
        if key not in self._packed:
            self._packed[key] = backend.prepare(linear.weight[: linear.n], linear.bias, problem)
            self.kept_bytes += backend.kept_bytes(self._packed[key])
        return self._packed[key]

    def hashes(self) -> dict[str, tuple[str, str]]:
        """(before vLLM processed it, now) of each parameter by name; nothing outside contests."""
        return {
            f"{linear.name}.{name}": (before, tensor_hash(getattr(linear, name)))
            for linear in self._by_address.values()
            for name, before in linear.hashes.items()
        }

    def close(self) -> None:
        """Lets go of the weights."""
        self._by_address.clear()
        self._packed.clear()


def role_of(name: str) -> str:
    """Of a module, where no table has a word for it."""
    return name.rpartition(".")[2].removesuffix("_proj")


def _stock_row(linear: Linear, key: Key, reason: str | None) -> PluginPath:
    variant, m, _ = key
    rows = m if m <= linear.largest else None
    return PluginPath(
        op="linear", layer=linear.name, role=role_of(linear.name), variant=variant, m=rows,
        shape=f"{rows or 'm'}x{linear.n}x{linear.k}", backend=STOCK, contest_legal=not linear.packed_by_vllm,
        read_bytes=None, reason=reason,
    )  # fmt: skip
