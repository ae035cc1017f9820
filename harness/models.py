"""The one resolver of a MODEL argument: a known name, a folder, or a config.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.checkpoint import open_checkpoint
from harness.errors import ConfigError
from harness.resources import cache_dir, config_names, find_config
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import as_in_checkpoint, model_tensors
from harness.specs.model import ModelSpec
from harness.specs.tensor import TensorMeta

MAX_PATH = 250


@dataclass(frozen=True)
class ResolvedModel:
    """A model as the user named it, and what of it lies on this machine."""

    name: str
    spec: ModelSpec
    folder: Path | None
    """Where the weights and the tokenizer lie; None when only a config.json is at hand."""
    tensors: tuple[TensorMeta, ...]
    tensors_source: Literal["headers", "config"]
    config_file: Path | None = None
    """Where the spec was read from."""

    def retyped(self, dtype: str) -> tuple[TensorMeta, ...]:
        """The tensors as an engine holds them that converts every weight to `dtype` (safetensors name)."""
        return tuple(tensor.model_copy(update={"dtype": dtype}) for tensor in self.tensors)


def resolve_model(name: str) -> ResolvedModel:
    """Find a model's config.json and, if they are here, its weights. Raises ConfigError, CheckpointError."""
    config_file, folder = _find(name)
    spec = model_spec_from_hf(_read_json(config_file), str(config_file))
    weights = folder if folder is not None and has_weights(folder) else None
    if weights is None:
        if spec.quantization is not None:
            raise ConfigError(
                f"{config_file}: quantization_config is {spec.quantization}, and no weights lie beside it",
                "give the checkpoint's folder: what is packed how stands in its headers",
            )
        return ResolvedModel(name, spec, None, tuple(model_tensors(spec)), "config", config_file)
    tensors = open_checkpoint(weights).tensors
    spec = as_in_checkpoint(spec, {t.name for t in tensors})
    return ResolvedModel(name, spec, weights, tensors, "headers", config_file)


def model_names() -> list[str]:
    """The known names."""
    return config_names("models", "*/config.json")


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights of any format; which of them can be read is the checkpoint reader's to say."""
    patterns = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _find(name: str) -> tuple[Path, Path | None]:
    """(config.json, folder that may hold weights)."""
    path = Path(name)
    if len(name) > MAX_PATH:
        raise ConfigError(f"MODEL {name[:60]!r}... is no path and no name", f"known: {', '.join(model_names())}")
    if path.is_file():
        return path, path.parent
    if path.is_dir():
        config_file = path / "config.json"
        if not config_file.is_file():
            raise ConfigError(f"{path}: holds no config.json", "give the folder of a Hugging Face checkpoint")
        return config_file, path
    if "/" in name or name.endswith(".json"):
        raise ConfigError(
            f"{path}: no such file or folder", f"give a path that exists, or one of: {', '.join(model_names())}"
        )
    converted = cache_dir() / "models" / name
    if (converted / "config.json").is_file():
        return converted / "config.json", converted
    return find_config("models", name, "{name}/config.json"), None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", "give a file that can be read") from None
    except (ValueError, RecursionError) as fault:
        raise ConfigError(f"{path}: not valid JSON: {fault}", "download the file again, or mend it") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}, not a JSON object", "give a model's config.json")
    return data
