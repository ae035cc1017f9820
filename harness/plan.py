"""`harness plan`: the floor of a decode step on a device, from shapes and published figures alone. Nothing is run."""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.roofline import compute_floor_s, memory_floor_s, ridge_flop_per_byte
from harness.specs.base import Frozen
from harness.specs.device import DeviceSpec, SourcedFigure
from harness.traffic import decode_traffic


class Plan(Frozen):
    """What a model's decode step costs on a device at one context; the same byte keys as a run's analysis."""

    model: str
    device: str
    context: PositiveInt
    precision: str
    tensors_source: str
    weight_read_bytes: PositiveInt
    embedding_row_bytes: PositiveInt
    kv_bytes_per_context_token: NonNegativeInt
    state_read_bytes: NonNegativeInt
    state_write_bytes: NonNegativeInt
    step_bytes: PositiveInt
    step_flop: PositiveInt
    resident_weight_bytes: PositiveInt
    kv_cache_bytes: NonNegativeInt
    """Of the whole context, as far as it is seen."""
    fits_in_memory: bool | None
    """Weights and cache within the device's memory; null where that is not known."""
    roof_read_bytes_per_s: PositiveFloat
    roof_source: str
    roof_unverified: bool
    floor_s: PositiveFloat
    """Step bytes over roof: no step can be faster."""
    floor_tokens_per_s: PositiveFloat
    compute_floor_s: PositiveFloat | None
    """Step FLOP over the type's peak; far below floor_s for a single request."""
    ridge_flop_per_byte: PositiveFloat | None


def make_plan(model: ResolvedModel, device: DeviceSpec, context: int) -> Plan:
    """The plan at one context. Raises ConfigError past the model's positions, and for a device without a roof."""
    if context > model.spec.max_position_embeddings:
        limit = model.spec.max_position_embeddings
        raise ConfigError(f"context {context} passes the model's {limit} positions", f"give at most {limit}")
    traffic = decode_traffic(model.spec, model.tensors, model.tensors_source)
    roof, figure = _roof(device)
    step_bytes, step_flop = traffic.step_bytes(context), traffic.step_flop(context)
    floor_s = memory_floor_s(step_bytes, roof)
    peak = device.peak_flop_per_s[model.spec.dtype].value if model.spec.dtype in device.peak_flop_per_s else None
    kv_cache_bytes = traffic.cache_bytes(context)
    memory = device.memory_bytes.value
    return Plan(
        model=model.name,
        device=device.name,
        context=context,
        precision=model.spec.dtype,
        **traffic.model_dump(include=_SAME_KEYS),
        step_bytes=step_bytes,
        step_flop=step_flop,
        kv_cache_bytes=kv_cache_bytes,
        fits_in_memory=None if memory is None else traffic.resident_weight_bytes + kv_cache_bytes <= memory,
        roof_read_bytes_per_s=roof,
        roof_source=figure.source,
        roof_unverified=figure.unverified,
        floor_s=floor_s,
        floor_tokens_per_s=1 / floor_s,
        compute_floor_s=None if peak is None else compute_floor_s(step_flop, peak),
        ridge_flop_per_byte=None if peak is None else ridge_flop_per_byte(peak, roof),
    )


_SAME_KEYS = {
    "tensors_source", "weight_read_bytes", "embedding_row_bytes", "kv_bytes_per_context_token", "state_read_bytes",
    "state_write_bytes", "resident_weight_bytes",
}  # fmt: skip


def _roof(device: DeviceSpec) -> tuple[float, SourcedFigure]:
    """A measured read where there is one, else the data sheet's bandwidth, which no real read reaches."""
    for figure in (device.read_probe_bytes_per_s, device.memory_bytes_per_s):
        if figure.value is not None:
            return figure.value, figure
    raise ConfigError(
        f"nobody publishes a bandwidth of {device.name}, and none was measured",
        "copy its file into configs/devices, fill in read_probe_bytes_per_s, and name that file",
    )
