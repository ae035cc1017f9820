"""What vLLM needs before it starts, in this process or in a server's: a folder with the model, and its variables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue

from harness.devices.cpu import physical_cores
from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.specs.vllm import VllmOptions
from harness.vllm_plugin.audit import WORKER
from harness.vllm_plugin.settings import REPORT, SELECTION, read_settings
from harness.vllm_plugin.shared import OFF
from harness.vllm_plugin.variant import Variant

NO_BINDING = "nobind"


@dataclass(frozen=True)
class Selections:
    """Tables that one vLLM shall have, and the place of each engine that asks it."""

    tables: tuple[str, ...]
    places: tuple[int | None, ...] = (None,)

    def variables(self, log_dir: Path) -> dict[str, str]:
        """What puts them into every process of vLLM, whose counters then lie in the log's folder."""
        selected = {SELECTION: os.pathsep.join(self.tables)} if self.tables else {}
        return selected | {REPORT: str(log_dir.resolve() / "plugin")}

    def variants(self, variables: Mapping[str, str], collect: Callable[[], object] | None) -> list[Variant]:
        """One for each engine. variables: of vLLM's processes. collect: Variant's."""
        return [Variant(Path(variables[REPORT]), collect, place, len(self.tables)) for place in self.places]


def selections(options: VllmOptions) -> Selections:
    """Of one engine alone."""
    return Selections(_tables(options))


def selections_of_both(a: VllmOptions, b: object) -> Selections | None:
    """Of two engines that differ in their selection alone: one vLLM has both, and is switched between requests.
    ConfigError where it would find one's prompt in what the other has computed."""
    if not isinstance(b, VllmOptions) or a == b or a.model_copy(update={"selection": b.selection}) != b:
        return None
    if a.enable_prefix_caching:
        raise ConfigError(
            "both selections share one vLLM, whose prefix cache would give one's prompt to the other",
            "set engine.enable_prefix_caching: false in both",
        )
    mine, theirs = _tables(a), _tables(b)
    return Selections(mine + theirs, (0 if mine else OFF, len(mine) if theirs else OFF))


def _tables(options: VllmOptions) -> tuple[str, ...]:
    return () if options.selection is None else tuple(filter(None, options.selection.split(os.pathsep)))


def has_audit(variables: Mapping[str, str]) -> bool:
    """Whether workers can tell their parameters' hashes: in a contest with a selection."""
    settings = read_settings(variables)
    return settings is not None and settings.contest


def plugin_arguments(variables: Mapping[str, str], on_gpu: bool) -> dict[str, JsonValue]:
    """EngineArgs that a selection takes: workers that can be asked, and on a GPU the attention that is ours; none
    without a selection."""
    settings = read_settings(variables)
    if settings is None:
        return {}
    attends = any(entry.op == "attention" for table in settings.load() for entry in table.entries)
    custom: dict[str, JsonValue] = {"attention_backend": "CUSTOM"} if on_gpu and attends else {}
    return {"worker_extension_cls": WORKER} | custom


def model_folder(model: ResolvedModel, options: VllmOptions) -> tuple[Path, TemporaryDirectory[str] | None]:
    """The folder that vLLM shall load; a temporary one where config.json has another name. Checks for weights."""
    if model.folder is None and options.load_format != "dummy":
        raise ConfigError(
            f"no weights of {model.name} lie here", "give the checkpoint's folder, or set engine.load_format: dummy"
        )
    file = model.config_file
    if model.folder is not None or file is None or file.name == "config.json":
        return (model.folder or Path(model.name)) if file is None else file.parent, None
    temporary = TemporaryDirectory(prefix="harness-model-")
    shutil.copy(file, Path(temporary.name) / "config.json")
    return Path(temporary.name), temporary


def our_variables(num_workers: int) -> dict[str, str]:
    """What the harness chooses where neither the run's configuration nor the shell does."""
    return {
        "VLLM_CPU_OMP_THREADS_BIND": _all_cores(num_workers),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # by default it keeps a core for a scheduler that here works in between
        "VLLM_NO_USAGE_STATS": "1",  # a measurement calls nobody
    }


def _all_cores(num_workers: int) -> str:
    """Every physical core, dealt out to the workers in vLLM's words: 0,1|2,3."""
    cores = physical_cores()
    each = len(cores) // num_workers
    if each == 0:
        return NO_BINDING
    shares = (cores[worker * each : (worker + 1) * each] for worker in range(num_workers))
    return "|".join(",".join(map(str, share)) for share in shares)
