"""A device as its data sheet has it (`DeviceSpec`) and as this machine shows it (`DeviceInfo`)."""

from typing import Literal

from pydantic import PositiveInt

from harness.specs.base import Frozen, Magnitude


class SourcedFigure(Frozen):
    """A figure and where it is from. A figure that no card of ours has confirmed is `unverified`."""

    value: Magnitude | None
    """SI base units; null where nobody publishes it."""
    source: str
    unverified: bool = True


class DeviceSpec(Frozen):
    """What is published or was measured of a device model: `configs/devices/<name>.yaml`."""

    name: str
    """As `--device` takes it."""
    description: str
    vendor: Literal["nvidia", "amd", "hygon", "cpu"]
    arch: str | None = None
    """sm_90, gfx942, ...; null for a generic CPU."""
    wave_width: PositiveInt | None = None
    memory_bytes: SourcedFigure
    last_level_cache_bytes: SourcedFigure
    memory_bytes_per_s: SourcedFigure
    """Peak bandwidth of the data sheet, one whole device; never the roof of a measurement."""
    read_probe_bytes_per_s: SourcedFigure
    """Best verified read that was measured on such a device; `plan` prefers it to the data sheet."""
    peak_flop_per_s: dict[str, SourcedFigure] = {}
    """Dense matrix peak by type (BF16, F16, F32, F8_E4M3, ...), without sparsity."""
    link_bytes_per_s: SourcedFigure | None = None
    """What one device sends to its peers over all its links, one direction; null where no such link is known."""
    notes: tuple[str, ...] = ()


class DeviceInfo(Frozen):
    """What was detected on this machine. What could not be read is null."""

    kind: Literal["cpu", "cuda", "rocm", "dcu", "scripted", "unknown"]
    """unknown: a server's, of which only its URL is known."""
    name: str
    arch: str | None = None
    num_compute_units: PositiveInt | None = None
    """CPU: physical cores this process may use; GPU: SMs or CUs."""
    wave_width: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None
    last_level_cache_bytes: PositiveInt | None = None
    features: tuple[str, ...] = ()
    """CPU: the instruction sets that kernels ask for (avx2, avx512f, avx512_bf16, amx_bf16)."""
