"""The walls that one rank's work meets, and the batches at which another wall comes first."""

from collections.abc import Callable

from harness.plan.variants import Work
from harness.roofline import Floor, compute_floor_s, memory_floor_s
from harness.specs.plan import Walls
from harness.specs.step import DecodeTraffic
from harness.traffic import prefill_flop


def step_floor(work: Work, walls: Walls, context: int, batch: int) -> Floor:
    """Of a decode step."""
    traffic = work.traffic
    return _floor(traffic.step_bytes(context, batch), traffic.step_flop(context, batch), walls)


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


def largest_batch_memory_bound(work: Work, walls: Walls, context: int) -> tuple[int | None, str | None]:
    """(the largest batch whose compute floor does not pass its memory floor, why there is none).

    Compute grows by the same time with each request. Memory is the weights' time, which grows ever more slowly as
    experts are shared and is bounded by all of them, and the same time more for each request's own bytes: per request
    it can only fall. So there is at most one change, from memory to compute, and none where a request's own bytes
    alone take longer than its arithmetic.
    """
    if walls.peak_flop_per_s is None:
        return None, "the peak is not known"
    if step_floor(work, walls, context, 1).bound == "compute":
        return None, "compute-bound at batch 1 already"
    own = _floor(_own_bytes(work.traffic, context), work.traffic.step_flop(context), walls)
    if own.compute_s is None or own.compute_s <= own.memory_s:
        return None, "memory-bound at any batch: a request's own cache and state take longer than its arithmetic"
    all_weights_s = memory_floor_s(_all_weight_bytes(work.traffic), walls.roof_read_bytes_per_s)
    bound = int(all_weights_s / (own.compute_s - own.memory_s)) + 2
    return _last(lambda batch: step_floor(work, walls, context, batch).bound == "memory", bound), None


def _own_bytes(traffic: DecodeTraffic, context: int) -> int:
    """What one more request adds to a step, but for experts."""
    return traffic.step_bytes(context) - traffic.weight_read_bytes


def _all_weight_bytes(traffic: DecodeTraffic) -> int:
    """The most that any batch reads."""
    return traffic.weight_read_bytes + sum(routed.num_bytes for routed in traffic.routed_experts)


def _last(holds: Callable[[int], bool], end: int) -> int:
    """The last number from 1 for which it holds: it holds for 1, not for `end`, and changes once."""
    low, high = 1, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
