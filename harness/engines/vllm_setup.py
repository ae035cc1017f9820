"""What vLLM needs before it starts, in this process or in a server's: a folder with the model, and its variables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue

from harness.backends.launch import GPU_KINDS
from harness.devices.cpu import physical_cores
from harness.errors import ConfigError, UnavailableError
from harness.models import ResolvedModel
from harness.specs.device import DeviceInfo
from harness.specs.vllm import VllmOptions
from harness.vllm_plugin.audit import WORKER
from harness.vllm_plugin.settings import REPORT, SELECTION, read_settings
from harness.vllm_plugin.shared import OFF, read_reports
from harness.vllm_plugin.variant import COMPARE_WITHOUT, GRAPHS_KEEP, Variant

NO_BINDING = "nobind"
NO_SHARED_ROOF = "no roof: several devices share a step, and one's memory alone would be probed"


@dataclass(frozen=True)
class Selections:
    """Tables that one vLLM shall have, and the place of each engine that asks it."""

    tables: tuple[str, ...]
    places: tuple[int | None, ...] = (None,)

    def variables(self, log_dir: Path) -> dict[str, str]:
        """What puts them into every process of vLLM, whose counters then lie in the log's folder."""
        selected = {SELECTION: os.pathsep.join(self.tables)} if self.tables else {}
        return selected | {REPORT: str(log_dir.resolve() / "plugin")}

    def variants(
        self, variables: Mapping[str, str], collect: Callable[[], object] | None, options: VllmOptions
    ) -> list[Variant]:
        """One for each engine, once vLLM is ready. variables: of its processes. collect: Variant's. UnavailableError
        where a worker takes nothing from the tables: it would be measured as if it did."""
        is_all_here = options.is_on_one_machine and options.executor != "external_launcher"
        here, workers = Path(variables[REPORT]), options.world_size if is_all_here else 1
        is_asked = bool(self.tables) or read_settings(variables) is not None
        taking = sum(bool(report.ops or report.paths) for report in read_reports(here)) if is_asked else workers
        if taking < workers:
            raise UnavailableError(
                f"{taking} of vLLM's {workers} workers take something from the selection",
                "install llm-decode-harness for its Python, let VLLM_PLUGINS allow it, and give a table that lists this"
                " model's shapes",
            )
        return [Variant(Path(variables[REPORT]), collect, place, len(self.tables)) for place in self.places]


def selections(options: VllmOptions) -> Selections:
    """Of one engine alone."""
    return Selections(_tables(options))


def selections_of_both(a: VllmOptions, b: object, device: DeviceInfo) -> Selections | None:
    """Of two engines that differ in their selection alone: one vLLM has both, and is switched between requests.
    ConfigError where it would find one's prompt in what the other has computed, replays one's graphs for both, or has
    workers that the switch does not reach."""
    if not isinstance(b, VllmOptions) or a == b or a.model_copy(update={"selection": b.selection}) != b:
        return None
    if a.enable_prefix_caching:
        raise ConfigError(
            "both selections share one vLLM, whose prefix cache would give one's prompt to the other",
            "set engine.enable_prefix_caching: false in both",
        )
    if device.kind in GPU_KINDS and a.graph not in ("eager", "compiled"):
        raise ConfigError(GRAPHS_KEEP, COMPARE_WITHOUT)
    if not a.is_on_one_machine:
        raise ConfigError(
            "both selections share one vLLM, whose workers may be on other machines, where no switch reaches them",
            "run `harness bench` once with each",
        )
    mine, theirs = _tables(a), _tables(b)
    return Selections(mine + theirs, (0 if mine else OFF, len(mine) if theirs else OFF))


def _tables(options: VllmOptions) -> tuple[str, ...]:
    return () if options.selection is None else tuple(filter(None, options.selection.split(os.pathsep)))


def has_roof(options: VllmOptions, device: DeviceInfo) -> bool:
    """Whether a step reads the memory of one device alone, so that a probe of it is its roof: workers on a CPU share
    the machine's."""
    return options.world_size == 1 or (device.kind == "cpu" and options.is_on_one_machine)


def has_audit(variables: Mapping[str, str]) -> bool:
    """Whether workers can tell their parameters' hashes: in a contest with a selection."""
    settings = read_settings(variables)
    return settings is not None and settings.contest


def plugin_arguments(variables: Mapping[str, str]) -> dict[str, JsonValue]:
    """EngineArgs that let workers be asked between requests; none without a selection."""
    return {} if read_settings(variables) is None else {"worker_extension_cls": WORKER}


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
        "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "HARNESS_",  # or the plugin does nothing in ray's workers
    }


def _all_cores(num_workers: int) -> str:
    """Every physical core, dealt out to the workers in vLLM's words: 0,1|2,3."""
    cores = physical_cores()
    each = len(cores) // num_workers
    if each == 0:
        return NO_BINDING
    shares = (cores[worker * each : (worker + 1) * each] for worker in range(num_workers))
    return "|".join(",".join(map(str, share)) for share in shares)
