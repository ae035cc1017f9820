"""Selection tables on disk: written by an A/B, refused where they are not of this device, type or software."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from harness.config_io import load_yaml_model, replace_file
from harness.errors import ConfigError, UnavailableError
from harness.kernel_build import compiler_version
from harness.resources import kernels_dir
from harness.specs.device import DeviceInfo
from harness.specs.selection import SelectionEntry, SelectionTable

PACKAGES = ("llm-decode-harness", "torch", "triton", "vllm")


def software_versions() -> dict[str, str]:
    """What a kernel's speed depends on beside the device: packages, the compiler, our kernels' sources."""
    found = {name: _version(name) for name in PACKAGES}
    try:
        found["compiler"] = compiler_version()
    except UnavailableError:
        found["compiler"] = None
    sources = sorted(path for path in kernels_dir().rglob("*") if path.is_file() and path.suffix != ".pyc")
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return {name: text for name, text in found.items() if text} | {"kernels": digest.hexdigest()[:16]}


def table_path(device: DeviceInfo, model: str, dtype: str, tensor_parallel: int = 1) -> Path:
    """Where a table belongs: configs/selections/<device>/<model>-<dtype>.yaml under the working directory, with -tp2
    behind the type where two workers share every layer."""
    card = device.arch if device.kind != "cpu" and device.arch else device.name
    folder = re.sub(r"[^a-z0-9_]+", "-", card.lower()).strip("-") or platform.machine()
    stem = Path(model).parent.name if model.endswith("config.json") else Path(model).name
    share = f"-tp{tensor_parallel}" if tensor_parallel > 1 else ""
    return Path("configs") / "selections" / folder / f"{stem}-{dtype.lower()}{share}.yaml"


def load_table(path: Path) -> SelectionTable:
    """A table as it was written. ConfigError for what is none, and for one that was changed since."""
    table = load_yaml_model(path, SelectionTable)
    if not table.is_whole:
        raise ConfigError(
            f"{path}: its fingerprint is not that of its contents: it was edited or damaged",
            "measure again with `harness ab ... --save`; to choose by hand set engine.linear and its like",
        )
    return table


def foreign(table: SelectionTable, device: DeviceInfo, dtype: str, tensor_parallel: int = 1) -> list[str]:
    """How a table is not of this device, type, number of workers and software; empty where it is."""
    known = _identity(table.device, table.dtype, table.tensor_parallel) | table.versions
    here = _identity(device, dtype, tensor_parallel) | software_versions()
    return [
        f"{key} {known.get(key, 'none')}, here {here.get(key, 'none')}"
        for key in dict.fromkeys((*known, *here))
        if known.get(key) != here.get(key)
    ]


def load_fitting(path: Path, device: DeviceInfo, dtype: str, force: bool) -> tuple[SelectionTable, list[str]]:
    """(table, how it is foreign); ConfigError for a foreign one, unless it is forced."""
    table = load_table(path)
    differences = foreign(table, device, dtype)
    if differences and not force:
        raise ConfigError(
            f"{path} was measured elsewhere: {'; '.join(differences)}",
            "measure here with `harness ab ... --save`, or set engine.selection_force: true",
        )
    return table, differences


def find_mergeable(path: Path, device: DeviceInfo, dtype: str, tensor_parallel: int = 1) -> SelectionTable | None:
    """The table that is there, if any; ConfigError for one that is `foreign`, which new entries can't stand in, and for
    one that was changed."""
    if not path.exists():
        return None
    table = load_table(path)
    differences = foreign(table, device, dtype, tensor_parallel)
    if differences:
        raise ConfigError(
            f"{path} was measured elsewhere: {'; '.join(differences)}", "move it away: --save then begins a new one"
        )
    return table


def save_entries(
    path: Path, entries: Iterable[SelectionEntry], model: str, dtype: str, device: DeviceInfo, tensor_parallel: int = 1
) -> SelectionTable:
    """Put entries into the table at `path`: a new one, or the one that is there if it is not `foreign`. ConfigError
    where it is, and where it can't be written; the old one then stays."""
    fresh = SelectionTable(
        model=model, dtype=dtype, tensor_parallel=tensor_parallel, device=device, versions=software_versions(),
        entries=(),
    )  # fmt: skip
    fresh = find_mergeable(path, device, dtype, tensor_parallel) or fresh
    table = fresh.merged(entries)
    text = yaml.safe_dump(table.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)
    replace_file(path, text)
    return table


def _identity(device: DeviceInfo, dtype: str, tensor_parallel: int) -> dict[str, str]:
    name = f"{device.kind} {device.name} {device.arch or ''}".strip()
    return {"device": name, "dtype": dtype, "tensor_parallel": str(tensor_parallel)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
