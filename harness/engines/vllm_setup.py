"""What vLLM needs before it starts, in this process or in a server's: a folder with the model, and its variables."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.devices.cpu import physical_cores
from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.specs.vllm import VllmOptions
from harness.vllm_plugin.settings import SELECTION

NO_BINDING = "nobind"


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


def selection_variables(options: VllmOptions) -> dict[str, str]:
    """What puts the run's selection into every process of vLLM."""
    return {} if options.selection is None else {SELECTION: options.selection}


def _all_cores(num_workers: int) -> str:
    """Every physical core, dealt out to the workers in vLLM's words: 0,1|2,3."""
    cores = physical_cores()
    each = len(cores) // num_workers
    if each == 0:
        return NO_BINDING
    shares = (cores[worker * each : (worker + 1) * each] for worker in range(num_workers))
    return "|".join(",".join(map(str, share)) for share in shares)
