"""What a machine read when it was first probed, so that a later, slower day shows."""

import hashlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, UnavailableError
from harness.resources import cache_dir
from harness.specs.device import DeviceInfo


def first_read_bytes_per_s(device: DeviceInfo, num_threads: int, read_bytes_per_s: float) -> float:
    """The stored figure of this machine; the first call stores and returns its own.

    A machine is its CPU's name, cores and cache and the threads that read: no host name, since containers
    change it. Raises ConfigError for a file that is not ours any more, UnavailableError where it can't be
    written.
    """
    machine = {
        "name": device.name,
        "num_compute_units": device.num_compute_units,
        "last_level_cache_bytes": device.last_level_cache_bytes,
        "num_threads": num_threads,
    }
    fingerprint = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "baselines" / f"{fingerprint}.json"
    if path.is_file():
        return _load(path)
    _store(path, {"read_bytes_per_s": read_bytes_per_s, "machine": machine})
    return read_bytes_per_s


def _load(path: Path) -> float:
    try:
        stored = float(json.loads(path.read_text())["read_bytes_per_s"])
        if not 0 < stored < math.inf:
            raise ValueError(f"{stored} bytes per second")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} holds no baseline: {error!r}", "remove it; the next survey writes a new one"
        ) from error
    return stored


def _store(path: Path, baseline: dict[str, Any]) -> None:
    """Written aside and renamed: a reader sees all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump(baseline, file, indent=2)
        Path(file.name).replace(path)
    except OSError as error:
        raise UnavailableError(
            f"the baseline can't be written to {path.parent}: {error}",
            "set XDG_CACHE_HOME to a folder you may write",
        ) from error
