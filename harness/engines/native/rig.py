"""The native engine's machine side: device, threads, probe, and the model on them."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from harness.backends.base import Executor
from harness.backends.registry import check_table
from harness.engines.base import EXPLAIN_STEPS, PairOpener, Rig
from harness.engines.native.decoder import Decoder
from harness.engines.native.elementwise.choose import choose_elementwise
from harness.engines.native.engine import NativeDecoding
from harness.engines.native.machine import free_memory_bytes, open_executor, open_probe, torch_device
from harness.engines.native.ops import OpTable
from harness.engines.native.runnable import check_runnable
from harness.engines.native.weights import TensorSource, checkpoint_source, synthetic_source
from harness.engines.native.workspace import Workspace
from harness.engines.text import load_tokenizer, longest_prompt
from harness.errors import ConfigError, UnavailableError
from harness.models import ResolvedModel
from harness.probe.base import Probe
from harness.selection import load_fitting, short_name
from harness.specs.run import NativeEngine, RunConfig
from harness.specs.selection import SelectionTable
from harness.specs.tensor import CONFIG_DTYPES, dtype_bytes
from harness.units import num_bytes


class NativeRig(Rig):
    """Everything on this machine that a native run needs; the pool serves probe, engine and backends alike."""

    def __init__(self, config: RunConfig, model: ResolvedModel) -> None:
        if not isinstance(config.engine, NativeEngine):
            raise ConfigError(f"engine.kind is {config.engine.kind!r}", "the native rig takes `native`")
        self._config, self._engine_config, self._model = config, config.engine, model
        self._torch_device = torch_device(config.engine.device)
        check_runnable(model.spec, self._torch_device)  # before anything is measured
        self._source: TensorSource | None = None
        self._probe_notes: list[str] = []
        self.executor = open_executor(self._torch_device, config.engine.threads)
        self.device = self.executor.device
        try:
            self._selection(config.engine)
        except ConfigError:
            self.executor.close()
            raise

    def open_probe(self) -> Probe | None:
        return open_probe(self._config.probe, self.executor, self._probe_notes.append)

    def open_engine(self, log_dir: Path | None = None, variant: NativeEngine | None = None) -> NativeDecoding:
        """variant: another way to do the same work; engines of one rig share their weights."""
        engine, model, dtype = variant or self._engine_config, self._model, self._dtype
        max_context, batch = self._max_context(), self._config.largest_batch
        self._check_memory(dtype, max_context, batch)
        started = time.perf_counter()
        source, executor = self._weights(), self.executor
        table, differences = self._selection(engine)
        ops = OpTable(executor, engine, dtype, table)
        # On the launching thread alone, in prefill too: between torch's products its threads still spin on the cores
        # that the pool's would need, and a prompt of 64 tokens took 2.4 times as long (docs/lab-log.md).
        elementwise = choose_elementwise(engine.elementwise, Executor(self.device), dtype)
        chunk = min(engine.prefill_chunk, max_context)
        workspace = Workspace(
            model.spec, ops, elementwise, self._torch_device, batch, max_context, max_rows=max(chunk, batch),
            fuse=engine.fuse, context=torch.zeros(1, dtype=torch.int64, device=self._torch_device),
        )  # fmt: skip
        decoder = Decoder(source, workspace, chunk)
        load_s = time.perf_counter() - started
        notes = (*_notes(engine, self._config.model, table, differences), *self._probe_notes)
        tokenizer = load_tokenizer(model.folder)
        return NativeDecoding(decoder, ops, executor, model, tokenizer, load_s, engine.graph, notes)

    def sharing(self, other: RunConfig) -> PairOpener | None:
        variant = other.engine
        if not isinstance(variant, NativeEngine):
            return None
        return lambda log_dir: (self.open_engine(log_dir), self.open_engine(log_dir, variant))

    @property
    def _dtype(self) -> str:
        wanted = self._engine_config.dtype
        return CONFIG_DTYPES[wanted] if wanted else self._model.spec.dtype

    def _weights(self) -> TensorSource:
        if self._source is None:
            engine, model = self._engine_config, self._model
            if engine.weights == "synthetic":
                self._source = synthetic_source(model.spec, self._dtype, self._torch_device, engine.seed)
            else:
                self._source = checkpoint_source(model, self._dtype, self._torch_device)
        return self._source

    def _selection(self, engine: NativeEngine) -> tuple[SelectionTable | None, list[str]]:
        """The table of winners and how it is foreign; refused before anything is loaded or measured."""
        if engine.selection is None:
            return None, []
        path = Path(engine.selection)
        table, differences = load_fitting(path, self.device, self._dtype, engine.selection_force)
        check_table(table, path)
        return table, differences

    def _max_context(self) -> int:
        """Places in the cache: the longest prompt and its answer, or the instrumented pass where that is longer."""
        work = self._config.workload
        prompt = longest_prompt(self._config, load_tokenizer(self._model.folder))
        return prompt + max(work.output_tokens, work.warmup_tokens, EXPLAIN_STEPS)

    def _check_memory(self, dtype: str, max_context: int, batch: int) -> None:
        """Refuse before the machine starts to swap: a run from swap measures a disk."""
        is_loaded = self._source is not None  # by the other engine of this rig
        weights = 0 if is_loaded else sum(t.num_elements for t in self._model.tensors) * dtype_bytes(dtype)
        cache = batch * self._model.spec.cache_bytes(max_context, dtype_bytes(dtype))
        available = free_memory_bytes(self.device)
        if available is not None and weights + cache > available:
            raise UnavailableError(
                f"the model needs {num_bytes(weights)} for weights and {num_bytes(cache)} for its cache,"
                f" {num_bytes(available)} of memory are free",
                "take a smaller model or fewer output tokens, or free memory",
            )

    def close(self) -> None:
        self.executor.close()


def _notes(
    engine: NativeEngine, model: str, table: SelectionTable | None, differences: list[str]
) -> tuple[str, ...]:  # fmt: skip
    notes = ["synthetic weights: the speed of the real ones, no meaning"] * (engine.weights == "synthetic")
    if differences:
        notes.append(f"{engine.selection} was forced, it is of {'; '.join(differences)}")
    if table is not None and short_name(table.model).lower() != short_name(model).lower():
        notes.append(
            f"{engine.selection} is of another model, {table.model}: it decides where both pose the same problem"
        )
    return tuple(notes)
