"""The split of a decode step without a profiler: how well the cache is read, and how well all else. Pure.

Between contexts only the cache's bytes change. With both paths' bytes over the roof of each moment as covariates, a
regression of step times over contexts tells the two paths' utilizations apart:

    time = cache_s / attention_util + other_s / linear_util
"""

import math
from collections.abc import Sequence
from functools import partial

from harness.repeats import Repeat
from harness.roof import Roof
from harness.specs.step import DecodeTraffic
from harness.specs.sweep_report import Interval, Split
from harness.stats import RelativeFit, relative_fit

LEFT_OUT_STEPS = 2
"""The first steps behind a prompt find caches and threads as the prompt left them."""
MIN_CONTEXTS, MIN_SPAN = 3, 8

Found = tuple[Split | None, str | None]


def split_paths(repeats: Sequence[Repeat], traffic: DecodeTraffic, roof: Roof) -> Found:
    """(the split, why there is none)."""
    reason = _too_little(repeats, traffic)
    if reason is not None:
        return None, reason
    rows, times = _observations(repeats, traffic, roof)
    fit = relative_fit(rows, times) if rows else None
    if fit is None:
        return None, "too few requests with readings of the roof around them: raise workload.repeats"
    return _split(fit, roof.kernel_half_width, repeats, traffic, len(rows))


def _too_little(repeats: Sequence[Repeat], traffic: DecodeTraffic) -> str | None:
    """Why these contexts can't show it, if they can't."""
    if traffic.kv_bytes_per_context_token == 0:
        return "no layer keeps a cache that grows with the context"
    if not repeats:
        return "no request came to its end"
    starts = sorted({repeat.send.num_prompt_tokens for repeat in repeats})
    if len(starts) < MIN_CONTEXTS or starts[-1] < MIN_SPAN * starts[0]:
        return (
            f"{len(starts)} starting contexts, {starts[0]} to {starts[-1]}: at least {MIN_CONTEXTS} over"
            f" {MIN_SPAN} times are needed, as in --sweep context=512,1024,4096"
        )
    if min(repeat.num_decode_steps for repeat in repeats) <= LEFT_OUT_STEPS:
        return f"{LEFT_OUT_STEPS} decode steps are left out of each request: raise workload.output_tokens"
    return None


def _observations(
    repeats: Sequence[Repeat], traffic: DecodeTraffic, roof: Roof
) -> tuple[list[tuple[float, float]], list[float]]:
    """((cache bytes over roof, other bytes over roof), time) of each request's steps."""
    rows, times = [], []
    for repeat in repeats:
        cache_s = roof.memory_s(repeat, partial(_cache_bytes, traffic, repeat.send.batch), LEFT_OUT_STEPS)
        all_s = roof.memory_s(repeat, partial(traffic.step_bytes, batch=repeat.send.batch), LEFT_OUT_STEPS)
        if cache_s is not None and all_s is not None:
            rows.append((cache_s, all_s - cache_s))
            times.append(repeat.decode_s_from(LEFT_OUT_STEPS))
    return rows, times


def _cache_bytes(traffic: DecodeTraffic, batch: int, context: int) -> int:
    """Read, and one position written."""
    return batch * (traffic.cache_bytes(context) + traffic.kv_bytes_per_context_token)


def _split(
    fit: RelativeFit, ratio_half: float, repeats: Sequence[Repeat], traffic: DecodeTraffic, num_requests: int
) -> Found:
    """ratio_half: of the kernel's ratio to the probe, in logarithms; all requests share its noise.

    A wide interval is an answer, and says so itself. Only where a path's time may be nothing there is none.
    """
    intervals = [_of_inverse(*found, ratio_half) for found in zip(fit.coefficients, fit.intervals, strict=True)]
    for path, interval in zip(("attention", "linear"), intervals, strict=True):
        if interval is None:
            return None, f"the {path} path's time is lost in noise: sweep to longer contexts, or raise workload.repeats"
    attention, linear = (interval for interval in intervals if interval is not None)
    longest = max(repeat.step_contexts()[-1] for repeat in repeats)
    return Split(
        attention_util_frac=1 / fit.coefficients[0],
        attention_interval_frac=attention,
        linear_util_frac=1 / fit.coefficients[1],
        linear_interval_frac=linear,
        num_requests=num_requests,
        residual_frac=fit.residual_frac,
        largest_cache_frac=_cache_bytes(traffic, 1, longest) / traffic.step_bytes(longest),
    ), None


def _of_inverse(inverse: float, interval: Interval, ratio_half: float) -> Interval | None:
    """Interval of a utilization, from its inverse and that one's interval; null where the inverse may be 0."""
    low, high = interval
    if low <= 0:
        return None
    down, up = math.log(high / inverse), math.log(inverse / low)
    return math.exp(-math.hypot(down, ratio_half)) / inverse, math.exp(math.hypot(up, ratio_half)) / inverse
