"""Where the data files are: kernel sources, device, model and run configurations.

A wheel carries them beside the package (`harness/_kernels`, `harness/_configs`); in a checkout and an editable install
they lie at the repository root. Users' own configurations come first: working directory, then user folder, then ours.
"""

import os
from pathlib import Path

from harness.errors import ConfigError, UnavailableError

MAX_NAME = 200
"""Longer names are refused by file systems with an error of their own."""
_PACKAGE = Path(__file__).resolve().parent


def _packaged(name: str) -> Path:
    """`harness/_<name>` of a wheel, else `<name>` at the repository root.

    The root goes first when it is a checkout: an editable install leaves a stale copy of a wheel's data behind.
    """
    root = _PACKAGE.parent
    in_checkout = (root / "pyproject.toml").is_file() and (root / name).is_dir()
    folder = root / name if in_checkout else _PACKAGE / f"_{name}"
    if not folder.is_dir():
        raise UnavailableError(f"the package's own data folder {folder} is missing", "reinstall llm-decode-harness")
    return folder


def kernels_dir() -> Path:
    """The folder of kernel sources, one folder an operation."""
    return _packaged("kernels")


def user_config_dir() -> Path:
    """$XDG_CONFIG_HOME/llm-decode-harness, by default under ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "llm-decode-harness"


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/llm-decode-harness, by default under ~/.cache: built kernels, converted models, baselines."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "llm-decode-harness"


def config_folders(kind: str) -> list[Path]:
    """Folders that may hold configurations of a kind (devices, models, runs), the user's before ours."""
    candidates = [Path.cwd() / "configs" / kind, user_config_dir() / kind, _packaged("configs") / kind]
    return [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]


def config_names(kind: str, pattern: str = "*.yaml") -> list[str]:
    """Every known name of a kind, sorted: file stems, or folder names for a pattern such as `*/config.json`."""
    found = (path for folder in config_folders(kind) for path in folder.glob(pattern))
    return sorted({path.parent.name if "/" in pattern else path.stem for path in found})


def find_config(kind: str, name: str, pattern: str = "{name}.yaml") -> Path:
    """The file of a known name; unknown names list the known ones."""
    for folder in config_folders(kind) if len(name) < MAX_NAME else ():
        path = folder / pattern.format(name=name)
        if path.is_file():
            return path
    known = ", ".join(config_names(kind, pattern.format(name="*")))
    raise ConfigError(f"no {kind.removesuffix('s')} is called {name[:MAX_NAME]!r}", f"known: {known}; or give a path")
