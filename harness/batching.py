"""How a decode step's walls move with the batch: the weights are read once for all of its requests. Pure."""

from collections.abc import Callable

from harness.roofline import compute_floor_s, memory_floor_s
from harness.specs.step import DecodeTraffic


def largest_batch_memory_bound(
    traffic: DecodeTraffic, context: int, roof: float, peak: float | None
) -> tuple[int | None, str | None]:
    """(the largest batch whose compute floor does not pass its memory floor, why there is none).

    Compute grows by the same time with each request. Memory is the weights' time, which grows ever more slowly as
    experts are shared and is bounded by all of them, and the same time more for each request's own bytes: per request
    it can only fall. So there is at most one change, from memory to compute, and none where a request's own bytes
    alone take longer than its arithmetic.
    """
    if peak is None:
        return None, "the peak is not known"

    def is_memory_bound(batch: int) -> bool:
        compute_s = compute_floor_s(traffic.step_flop(context, batch), peak)
        return compute_s <= memory_floor_s(traffic.step_bytes(context, batch), roof)

    if not is_memory_bound(1):
        return None, "compute-bound at batch 1 already"
    own_bytes = traffic.step_bytes(context) - traffic.weight_read_bytes
    own_s = compute_floor_s(traffic.step_flop(context), peak) - memory_floor_s(own_bytes, roof)
    if own_s <= 0:
        return None, "memory-bound at any batch: a request's own cache and state take longer than its arithmetic"
    all_weights = traffic.weight_read_bytes + sum(routed.num_bytes for routed in traffic.routed_experts)
    return _last(is_memory_bound, int(memory_floor_s(all_weights, roof) / own_s) + 2), None


def _last(holds: Callable[[int], bool], end: int) -> int:
    """The last number from 1 for which it holds: it holds for 1, not for `end`, and changes once."""
    low, high = 1, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
