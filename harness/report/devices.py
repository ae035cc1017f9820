"""The known devices as rows."""

from typing import Any

from harness.devices.datasheet import load_device_spec
from harness.resources import config_names
from harness.units import gb_per_s, num_bytes


def device_rows() -> list[dict[str, Any]]:
    """One row a device file."""
    rows = []
    for spec in map(load_device_spec, config_names("devices")):
        rows.append(
            {
                "device": spec.name,
                "arch": spec.arch,
                "memory": num_bytes(spec.memory_bytes.value),
                "published": gb_per_s(spec.memory_bytes_per_s.value),
                "measured read": gb_per_s(spec.read_probe_bytes_per_s.value),
                "description": spec.description,
            }
        )
    return rows
