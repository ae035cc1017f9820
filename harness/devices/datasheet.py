"""Data sheets of known devices (`configs/devices/*.yaml`), and which of them a detected device is.

A wrong data sheet is worse than none: a card taken for another one gets a roof that is not its own, and a
verdict that looks measured. So a device is recognised by all that its runtime says, or not at all.
"""

import re
from pathlib import Path
from typing import NamedTuple

from harness.config_io import load_yaml_model
from harness.errors import ConfigError
from harness.resources import MAX_NAME, find_config
from harness.specs.device import DeviceInfo, DeviceSpec


class _Signature(NamedTuple):
    """What the runtime says of the device that a data sheet describes."""

    sheet: str
    kind: str
    arch: str
    name: str
    """Regular expression that the whole device name must match."""
    num_compute_units: int | None
    """Tells a whole device from a partition (MIG, MI300X in CPX mode), and two devices of one name apart.

    None where the vendor has no partitions and nothing else bears the name: then it is not compared.
    """


_SIGNATURES = (
    # The variants have other memory: A100-SXM4-40GB and A100 80GB PCIe, H100 PCIe and NVL, H200 NVL.
    _Signature("a100", "cuda", "sm_80", r"NVIDIA A100-SXM4-80GB", 108),
    _Signature("h100", "cuda", "sm_90", r"NVIDIA H100 80GB HBM3", 132),
    _Signature("h200", "cuda", "sm_90", r"NVIDIA H200", 132),
    # ROCm calls MI250X and MI250 by one name; an MI250's die has 104 CUs.
    _Signature("mi250x", "rocm", "gfx90a", r"AMD Instinct MI250X(/MI250)?", 110),
    _Signature("mi300x", "rocm", "gfx942", r"AMD Instinct MI300X( OAM| VF)?", 304),
    _Signature("z100", "dcu", "gfx906", r"Z100L?", None),
    _Signature("k100-ai", "dcu", "gfx928", r"K100_AI", None),
    _Signature("bw-gfx936", "dcu", "gfx936", r"BW(1000|150)?", 80),
)


def load_device_spec(name_or_path: str) -> DeviceSpec:
    """The data sheet of a known name (`h100`), or in a file of the user's (`./mycard.yaml`).

    Raises ConfigError: unknown names list the known ones, and a file says by its name what it describes.
    """
    if len(name_or_path) > MAX_NAME:
        raise ConfigError(f"device {name_or_path[:60]!r}... is no path and no name", "see `harness devices`")
    given_as_path = name_or_path.endswith((".yaml", ".yml")) or len(Path(name_or_path).parts) > 1
    path = Path(name_or_path) if given_as_path else find_config("devices", name_or_path)
    spec = load_yaml_model(path, DeviceSpec)
    if spec.name != path.stem:
        raise ConfigError(f"{path}: name is {spec.name!r}", f"write `name: {path.stem}`, or rename the file")
    return spec


def match_device(info: DeviceInfo) -> DeviceSpec | None:
    """The data sheet of a detected device; None for a device, variant or partition that no file describes.

    Any CPU is `cpu-generic`, whose file holds no figures.
    """
    if info.kind == "cpu":
        return load_device_spec("cpu-generic")
    return next((load_device_spec(known.sheet) for known in _SIGNATURES if _is(info, known)), None)


def _is(info: DeviceInfo, known: _Signature) -> bool:
    arch = (info.arch or "").partition(":")[0]  # gcnArchName carries features: gfx936:sramecc+:xnack-
    return (
        info.kind == known.kind
        and arch == known.arch
        and re.fullmatch(known.name, info.name.strip()) is not None
        and known.num_compute_units in (None, info.num_compute_units)
    )
