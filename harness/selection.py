"""Selection tables on disk: written by an A/B, refused where they are not of this device, type or software."""

from __future__ import annotations

import hashlib
import os
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

MEASURE_AGAIN = (
    "measure again with `harness ab ... --save`, or move it away; to choose by hand set engine.linear and its like"
)
"""Mending a table by hand would leave one whose fingerprint does not fit."""
NOT_KNOWN = "not known"
"""Is taken to be the same."""
BEGIN_ANEW = "move it away: --save then begins a new one"
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


def model_name(model: str) -> str:
    """Whose shapes a MODEL argument means: a known name, or the folder's path, from wherever it was written."""
    path = Path(model)
    if path.exists():
        path = Path(os.path.abspath(path))  # noqa: PTH100 - not its target: caches name folders by hashes
    return str(path.parent if path.name == "config.json" else path)


def short_name(model: str) -> str:
    """The last part of it."""
    return Path(model_name(model)).name


def table_path(device: DeviceInfo, model: str, dtype: str, tensor_parallel: int = 1) -> Path:
    """Where a table belongs: configs/selections/<device>/<model>-<dtype>.yaml under the working directory, with -tp2
    behind the type where two workers share every layer."""
    card = device.arch if device.kind != "cpu" and device.arch else device.name
    folder = re.sub(r"[^a-z0-9_]+", "-", card.lower()).strip("-") or platform.machine()
    share = f"-tp{tensor_parallel}" if tensor_parallel > 1 else ""
    return Path("configs") / "selections" / folder / f"{short_name(model)}-{dtype.lower()}{share}.yaml"


def load_table(path: Path) -> SelectionTable:
    """A table as it was written. ConfigError for what is none, and for one that was changed since."""
    try:
        table = load_yaml_model(path, SelectionTable)
    except ConfigError as fault:
        raise ConfigError(fault.what, MEASURE_AGAIN if path.is_file() else fault.mend) from None
    if not table.is_whole:
        raise ConfigError(
            f"{path}: its fingerprint is not that of its contents: it was edited or damaged", MEASURE_AGAIN
        )
    return table


def foreign(table: SelectionTable, device: DeviceInfo, dtype: str, tensor_parallel: int = 1) -> list[str]:
    """How a table is not of this device, type, number of workers and software; empty where it is."""
    known = _identity(table.device, table.dtype, table.tensor_parallel) | table.versions
    here = _identity(device, dtype, tensor_parallel) | software_versions()
    return [
        f"{key} {known.get(key, 'none')}, here {here.get(key, 'none')}"
        for key in dict.fromkeys((*known, *here))
        if known.get(key) != here.get(key) and NOT_KNOWN not in (known.get(key), here.get(key))
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


def find_mergeable(
    path: Path, model: str, device: DeviceInfo, dtype: str, tensor_parallel: int = 1
) -> SelectionTable | None:
    """The table that is there, if any; ConfigError for one that is `foreign` or of another model, in which new entries
    can't stand, and for one that was changed."""
    if not path.exists():
        return None
    table = load_table(path)
    differences = foreign(table, device, dtype, tensor_parallel)
    if differences:
        raise ConfigError(f"{path} was measured elsewhere: {'; '.join(differences)}", BEGIN_ANEW)
    if model_name(table.model) != model_name(model):
        raise ConfigError(f"{path} is of {table.model}, not of {model_name(model)}", BEGIN_ANEW)
    return table


def save_entries(
    path: Path, entries: Iterable[SelectionEntry], model: str, dtype: str, device: DeviceInfo, tensor_parallel: int = 1
) -> SelectionTable:
    """Put entries into the table at `path`: a new one, or the one that is there if it is not `foreign`. ConfigError
    where it is, and where it can't be written; the old one then stays."""
    fresh = SelectionTable(
        model=model_name(model), dtype=dtype, tensor_parallel=tensor_parallel, device=device,
        versions=software_versions(), entries=(),
    )  # fmt: skip
    fresh = find_mergeable(path, model, device, dtype, tensor_parallel) or fresh
    table = fresh.merged(entries)
    text = yaml.safe_dump(table.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)
    replace_file(path, text)
    return table


def _identity(device: DeviceInfo, dtype: str, tensor_parallel: int) -> dict[str, str]:
    """A name alone is not enough: many a virtual machine's is that of a family, whatever its cores have."""
    name = f"{device.kind} {device.name} {device.arch or ''}".strip()
    return {
        "device": name, "features": " ".join(device.features) or "none",
        "compute units": str(device.num_compute_units or NOT_KNOWN),
        "last-level cache bytes": str(device.last_level_cache_bytes or NOT_KNOWN), "dtype": dtype,
        "tensor_parallel": str(tensor_parallel),
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
