"""The walls that one rank's work meets, and the batches at which another wall comes first."""

from harness.plan.variants import Work
from harness.roofline import Floor, compute_floor_s, memory_floor_s
from harness.specs.plan import Walls
from harness.specs.step import DecodeTraffic
from harness.traffic import prefill_flop


def step_floor(work: Work, walls: Walls, context: int, batch: int) -> Floor:
    """Of a decode step."""
    traffic = work.traffic
    return _floor(traffic.step_bytes(context, batch), traffic.step_flop(context, batch), walls)


def cache_floor_s(work: Work, walls: Walls, context: int, batch: int) -> float:
    """The cache's part of a step's memory floor: read up to the context, one position written."""
    one = work.traffic.cache_bytes(context) + work.traffic.kv_bytes_per_context_token
    return memory_floor_s(batch * one, walls.roof_read_bytes_per_s)


def prompt_floor(work: Work, walls: Walls, num_tokens: int) -> Floor:
    """Of a prompt, alone: all its arithmetic, and of the weights what its tokens take, once."""
    return _floor(work.traffic.step_weight_bytes(num_tokens), prefill_flop(work.spec, num_tokens), walls)


def _floor(num_bytes: int, flop: int, walls: Walls) -> Floor:
    peak = walls.peak_flop_per_s
    return Floor(
        memory_s=memory_floor_s(num_bytes, walls.roof_read_bytes_per_s),
        compute_s=None if peak is None else compute_floor_s(flop, peak),
    )


def largest_batch_in_memory(traffic: DecodeTraffic, context: int, memory_bytes: int | None) -> int | None:
    """Requests whose caches and states lie beside the weights; null where that is not known, or none keeps anything."""
    kept = request_bytes(traffic, context)
    if memory_bytes is None or not kept:
        return None
    return max(0, memory_bytes - traffic.resident_weight_bytes) // kept


def request_bytes(traffic: DecodeTraffic, context: int) -> int:
    """What a request keeps in memory: its cache and its state."""
    return traffic.cache_bytes(context) + traffic.state_read_bytes
