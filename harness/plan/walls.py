"""The walls of a published device."""

from harness.errors import ConfigError
from harness.specs.device import DeviceSpec, SourcedFigure
from harness.specs.plan import Walls


def device_walls(device: DeviceSpec, dtype: str) -> Walls:
    """What a model of this type (safetensors name) meets there. Raises ConfigError for a device without a roof."""
    roof, figure = _roof(device)
    memory = device.memory_bytes.value
    peak, link = _known(device.peak_flop_per_s.get(dtype)), _known(device.link_bytes_per_s)
    return Walls(
        device=device.name,
        roof_read_bytes_per_s=roof,
        roof_source=figure.source,
        roof_unverified=figure.unverified,
        peak_flop_per_s=peak.value if peak else None,
        peak_source=peak.source if peak else None,
        memory_bytes=None if memory is None else int(memory),
        link_bytes_per_s=link.value if link else None,
        link_source=link.source if link else None,
    )


def _known(figure: SourcedFigure | None) -> SourcedFigure | None:
    """A figure that somebody publishes."""
    return figure if figure is not None and figure.value is not None else None


def _roof(device: DeviceSpec) -> tuple[float, SourcedFigure]:
    """A measured read where there is one, else the data sheet's bandwidth, which no real read reaches."""
    for figure in (device.read_probe_bytes_per_s, device.memory_bytes_per_s):
        if figure.value is not None:
            return figure.value, figure
    raise ConfigError(
        f"nobody publishes a bandwidth of {device.name}, and none was measured",
        "copy its file into configs/devices, fill in read_probe_bytes_per_s, and name that file",
    )
