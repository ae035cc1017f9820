"""One model's layers, their paths through our backends, and the counters: what the op looks into when it runs."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from harness.backends.base import Executor, LinearBackend
from harness.backends.registry import linear_backends
from harness.errors import ConfigError, UnavailableError
from harness.specs.plugin import STOCK, PluginPath, PluginReport
from harness.specs.problem import LinearProblem, Parameters
from harness.specs.selection import SelectionTable
from harness.vllm_plugin.audit import tensor_hash
from harness.vllm_plugin.linear import Key, Linear, Product, bound_product
from harness.vllm_plugin.settings import CONTEST, Settings
from harness.vllm_plugin.shared import MAX_PATHS, OFF, active_file, new_counters, shared_integers, write_report


class Session:
    """What a process does for one model."""

    def __init__(
        self, settings: Settings, tables: tuple[SelectionTable, ...], executor: Executor, notes: tuple[str, ...] = ()
    ) -> None:
        """ConfigError in a contest for a table with a backend that keeps weights in a layout of its own."""
        self.settings, self.tables, self._executor, self._notes = settings, tables, executor, notes
        self._folder, self._pid = settings.report, os.getpid()
        self._active = shared_integers(active_file(self._folder) if self._folder else None, 1)
        self._counts = new_counters(self._folder, self._pid)
        self._by_address: dict[int, Linear] = {}
        self._backends: dict[tuple[Any, ...], LinearBackend] = {}
        self._packed: dict[tuple[int, int], Any] = {}
        self._rows: list[PluginPath] = []
        self._kept_bytes = 0
        if settings.contest:
            self._check_legal()

    def _check_legal(self) -> None:
        names = {entry.backend for table in self.tables for entry in table.entries if entry.op == "linear"}
        illegal = sorted(name for name in names if not linear_backends.get(name).contest_legal)
        if illegal:
            raise ConfigError(
                f"{CONTEST}=1, and the selection has {', '.join(illegal)}, which keeps weights in its own layout",
                "select among those that `harness backends` marks as contest-legal",
            )

    def largest(self, n: int, k: int, dtype: str) -> int:
        """Rows that any table lists at most for a weight of this shape; 0: none lists it."""
        problems = [entry.problem for table in self.tables for entry in table.entries]
        shape = n, k, dtype
        return max((p.m for p in problems if isinstance(p, LinearProblem) and (p.n, p.k, p.dtype) == shape), default=0)

    def add(self, linear: Linear) -> None:
        """Prepares every backend that a table names for it: none of that is left to a request."""
        self._kept_bytes += linear.kept_bytes
        self._by_address[linear.weight.data_ptr()] = linear
        for variant, table in enumerate(self.tables):
            for entry in table.entries:
                if entry.problem == linear.problem(entry.problem.m):
                    self._add_path(linear, (variant, entry.problem.m, linear.bias is None))
        self._write()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product of a layer by the path that the active variant has for this number of rows."""
        layer = self._by_address.get(weight.data_ptr())
        if layer is None:
            raise UnavailableError(
                "a weight is not where it was loaded, or is another model's", "no sleep mode; one model in a process"
            )
        rows = x.numel() // x.shape[-1]
        key = self._active[0], min(rows, layer.largest + 1), bias is None
        path = layer.paths.get(key)
        if path is None:
            path = self._add_path(layer, key)
            self._write()
        self._counts[path[0]] += 1
        return path[1](x, bias)

    def _add_path(self, linear: Linear, key: Key) -> tuple[int, Product]:
        if len(self._rows) == MAX_PATHS:
            raise UnavailableError(f"more than {MAX_PATHS} paths", "name fewer tables in HARNESS_SELECTION")
        row, product = self._path(linear, key)
        linear.paths[key] = len(self._rows), product
        self._rows.append(row)
        return linear.paths[key]

    def _path(self, linear: Linear, key: Key) -> tuple[PluginPath, Product]:
        variant, m, no_bias = key
        if not OFF <= variant < len(self.tables):
            raise ConfigError(f"there is no variant {variant}", f"HARNESS_SELECTION names {len(self.tables)} tables")
        if variant == OFF or m > linear.largest:
            return _stock_row(linear, key, None), linear.stock
        problem = linear.problem(m)
        entry = self.tables[variant].find("linear", problem)
        if entry is None or no_bias != (linear.bias is None):
            return _stock_row(linear, key, "the table does not list this problem"), linear.stock
        support = linear_backends.get(entry.backend).supports(problem, self._executor.device)
        if not support.ok:
            return _stock_row(linear, key, f"{entry.backend}: {support.why} ({support.mend})"), linear.stock
        backend = self._backend(entry.backend, entry.parameters)
        packed = self._prepared(backend, linear, problem)
        row = PluginPath(
            layer=linear.name, role=entry.role, variant=variant, m=m, n=linear.n, k=linear.k, backend=entry.backend,
            parameters=entry.parameters, contest_legal=backend.contest_legal, read_bytes=backend.read_bytes(packed, m),
        )  # fmt: skip
        return row, bound_product(backend, packed, linear, m)

    def _backend(self, name: str, parameters: Parameters) -> LinearBackend:
        key = (name, *parameters.items())
        if key not in self._backends:
            self._backends[key] = linear_backends.get(name)(self._executor, **parameters)
        return self._backends[key]

    def _prepared(self, backend: LinearBackend, linear: Linear, problem: LinearProblem) -> Any:
        key = linear.weight.data_ptr(), id(backend)
        if key not in self._packed:
            self._packed[key] = backend.prepare(linear.weight[: linear.n], linear.bias, problem)
            self._kept_bytes += backend.kept_bytes(self._packed[key])
        return self._packed[key]

    def report(self) -> PluginReport:
        """The counts of now."""
        paths = [row.model_copy(update={"num_calls": self._counts[place]}) for place, row in enumerate(self._rows)]
        return PluginReport(
            pid=self._pid, tables=tuple(table.fingerprint for table in self.tables), notes=self._notes,
            kept_bytes=self._kept_bytes, paths=tuple(paths),
        )  # fmt: skip

    def _write(self) -> None:
        if self._folder is not None:
            write_report(self._folder, self.report())

    def hashes(self) -> dict[str, tuple[str, str]]:
        """(before vLLM processed it, now) of each parameter by name; nothing outside contests."""
        return {
            f"{linear.name}.{name}": (before, tensor_hash(getattr(linear, name)))
            for linear in self._by_address.values()
            for name, before in linear.hashes.items()
        }

    def switch(self, variant: int) -> None:
        """`shared.switch` for this process, where no folder is named."""
        self._active[0] = variant

    def close(self) -> None:
        """Lets go of the model's weights."""
        self._by_address.clear()
        self._packed.clear()
        self._executor.close()


def _stock_row(linear: Linear, key: Key, reason: str | None) -> PluginPath:
    variant, m, _ = key
    return PluginPath(
        layer=linear.name, role=linear.name.rpartition(".")[2].removesuffix("_proj"), variant=variant,
        m=m if m <= linear.largest else None, n=linear.n, k=linear.k, backend=STOCK,
        contest_legal=not linear.packed_by_vllm, read_bytes=None, reason=reason,
    )  # fmt: skip
