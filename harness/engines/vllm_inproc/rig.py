"""vLLM's machine side in this process: its variables, its device, the probe of that device, and the engine."""

from __future__ import annotations

import importlib.util
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness import vllm_plugin
from harness.devices.cpu import physical_cores
from harness.engines.base import Engine, PairOpener, Rig
from harness.engines.text import load_tokenizer, longest_prompt
from harness.engines.vllm_inproc.variables import Variables, bound_cores
from harness.engines.vllm_setup import (
    NO_SHARED_ROOF,
    Selections,
    has_audit,
    has_roof,
    model_folder,
    plugin_arguments,
    selections,
    selections_of_both,
)
from harness.errors import ConfigError, HarnessError, UnavailableError
from harness.models import ResolvedModel
from harness.probe.base import Probe
from harness.specs.run import RunConfig
from harness.specs.tensor import dtype_bytes
from harness.specs.vllm import VllmEngine
from harness.vllm_plugin.audit import COLLECT

if TYPE_CHECKING:
    from vllm import LLM

LEAST_CPU_CACHE_BYTES = 1 << 30


class VllmRig(Rig):
    """The probe is the native engine's: it reads the same memory."""

    def __init__(self, config: RunConfig, model: ResolvedModel) -> None:
        if not isinstance(config.engine, VllmEngine):
            raise ConfigError(f"engine.kind is {config.engine.kind!r}", "vLLM's rig takes `vllm`")
        found = importlib.util.find_spec("vllm")
        if found is None or found.origin is None:  # a folder of that name on the path is no package
            raise UnavailableError(
                "vLLM is not installed here", "take its container, or `make install-vllm` and .venv-vllm/bin/harness"
            )
        self._config, self._engine, self._model, self._notes = config, config.engine, model, list[str]()
        self._folder, self._temporary = model_folder(model, config.engine)
        self._variables = Variables(config.engine)
        try:
            # From here on torch and vLLM are imported, and read the variables.
            from harness.engines.native.machine import open_executor

            self._executor = open_executor(_vllm_device(), None)
        except BaseException:
            self._variables.restore()
            raise
        self.device = self._executor.device

    def open_probe(self) -> Probe | None:
        from harness.engines.native.machine import open_probe

        if not has_roof(self._engine, self.device):
            self._notes.append(NO_SHARED_ROOF)
            return None
        return open_probe(self._config.probe, self._executor, self._notes.append)

    def open_engine(self, log_dir: Path) -> Engine:
        """log_dir: where the plugin leaves its counters."""
        (engine,) = self._open(log_dir, selections(self._engine))
        return engine

    def sharing(self, other: RunConfig) -> PairOpener | None:
        tables = selections_of_both(self._engine, other.engine, self.device)
        return None if tables is None else partial(self._open, tables=tables)

    def _open(self, log_dir: Path, tables: Selections) -> list[Engine]:
        """Engines of one vLLM, each with its variant."""
        from harness.engines.vllm_inproc.engine import VllmDecoding

        tokenizer = load_tokenizer(self._folder)
        longest = longest_prompt(self._config, tokenizer)
        started = time.perf_counter()
        is_here = self.device.kind == "cpu" and self._engine.world_size == 1  # and not in processes of vLLM's
        cores = bound_cores() if is_here else None
        if is_here:  # else vLLM leaves this process a single thread
            os.environ.setdefault("OMP_NUM_THREADS", str(len(cores or physical_cores())))
        os.environ.update(tables.variables(log_dir) | self._engine.environment)
        vllm_plugin.register()  # vLLM does it for its first engine in a process alone
        defaults, plugin = self._defaults(longest), plugin_arguments(os.environ)
        allowed = os.sched_getaffinity(0)
        llm = _start({"model": str(self._folder), **defaults, **plugin, **self._arguments()})
        os.sched_setaffinity(0, allowed)  # 0.18 leaves this thread on the first core, and so what it starts later
        load_s = time.perf_counter() - started
        synthetic = ["random weights: the speed of the real ones, no meaning"] * (self._engine.load_format == "dummy")
        notes = *synthetic, *self._notes
        collect, audits = partial(llm.collective_rpc, COLLECT) if plugin else None, has_audit(os.environ)
        try:
            variants = tables.variants(os.environ, collect, self._engine)
        except BaseException:
            llm.llm_engine.engine_core.shutdown()
            raise
        return [
            VllmDecoding(llm, self._model, tokenizer, cores, load_s, variant, audits, notes) for variant in variants
        ]

    def _arguments(self) -> dict[str, Any]:
        return self._engine.arguments(self._model.spec.dtype)

    def _defaults(self, longest: int) -> dict[str, Any]:
        """What the workload takes, where the configuration leaves it open."""
        work, batch = self._config.workload, self._config.largest_batch
        positions = longest + max(work.output_tokens, work.warmup_tokens)
        defaults: dict[str, Any] = {
            "skip_tokenizer_init": True, "use_tqdm_on_load": False, "max_model_len": positions, "max_num_seqs": batch,
        }  # fmt: skip
        if batch > 1:
            defaults["max_num_batched_tokens"] = batch * longest  # or else they don't start in one step
        if self.device.kind == "cpu" and self._engine.gpu_memory_utilization is None:
            dtype = self._engine.held_dtype(self._model.spec.dtype)
            needed = batch * self._model.spec.cache_bytes(positions, dtype_bytes(dtype))
            defaults["kv_cache_memory_bytes"] = max(2 * needed, LEAST_CPU_CACHE_BYTES)
        return defaults

    def close(self) -> None:
        vllm_plugin.close_session()  # of an engine that did not come up
        self._executor.close()
        self._variables.restore()
        if self._temporary is not None:
            self._temporary.cleanup()


def _vllm_device() -> Any:
    """The torch device of vLLM's platform."""
    import torch

    try:
        from vllm.platforms import current_platform
    except Exception as fault:  # a broken installation raises whatever it likes
        reason = str(fault).partition("\n")[0]
        raise UnavailableError(
            f"vLLM can't be imported: {reason}", "mend the installation; --debug shows where it broke"
        ) from fault
    name = current_platform.device_type
    if name not in ("cpu", "cuda"):
        raise UnavailableError(f"vLLM's device is {name!r}", "the harness knows cpu and cuda (ROCm included)")
    return torch.device(name)


def _start(arguments: dict[str, Any]) -> LLM:
    """ConfigError for settings that vLLM refuses, UnavailableError for all else that keeps it from starting."""
    try:
        from vllm import LLM

        return LLM(**arguments)
    except HarnessError:  # the plugin's
        raise
    except (ValueError, TypeError) as fault:
        raise ConfigError(
            f"vLLM refuses its settings: {_reason(fault)}", "mend `engine` in the configuration"
        ) from fault
    except Exception as fault:  # it raises whatever it likes
        what = f"vLLM did not start: {type(fault).__name__}: {_reason(fault)}"
        raise UnavailableError(what, "set VLLM_LOGGING_LEVEL=INFO to see what it did last") from fault


def _reason(fault: Exception) -> str:
    """One line."""
    if isinstance(fault, ValidationError):
        return str(fault.errors()[0]["msg"]).removeprefix("Value error, ").partition("\n")[0]
    return str(fault).partition("\n")[0]
