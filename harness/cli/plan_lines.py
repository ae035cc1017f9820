"""A plan as people read it: lines for one device, a row each for several."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.specs.plan import Plan


def plan_title(p: "Plan", name: str) -> str:
    """What is planned, and for what."""
    parts = [name, f"context {p.context:,}"]
    parts += [f"batch {p.batch:,}"] if p.batch > 1 else []
    parts += [f"shared by {p.tensor_parallel} devices"] if p.tensor_parallel > 1 else []
    parts += [f"weights at {p.weight_bits} bits"] if p.weight_bits else []
    parts += [f"cache at {p.kv_bits} bits"] if p.kv_bits else []
    return ", ".join(parts)


def plan_lines(p: "Plan") -> list[tuple[str, str]]:
    """Floors first, then what they rest on."""
    return [*_floor_lines(p), *_byte_lines(p), *_rank_lines(p), *_limit_lines(p)]


def _floor_lines(p: "Plan") -> list[tuple[str, str]]:
    from harness.units import ms, percent

    rate = f"{p.floor_tokens_per_s:,.2f} tokens/s{f' for {p.batch:,} requests' if p.batch > 1 else ''} at most"
    lines = [
        ("TPOT floor", f"{ms(p.floor_s)} ({_wall(p.bound)}): {rate}"),
        ("TTFT floor", f"{ms(p.ttft_floor_s)} ({_wall(p.ttft_bound)}) for {p.input_tokens:,} prompt tokens"),
    ]
    if p.calibration is not None:
        run = p.calibration
        reached = f"utilization {run.util_frac:.3f}, prefill MFU {percent(run.prefill_mfu_frac)}"
        if run.split is not None:
            paths = (run.split.linear_util_frac, run.split.attention_util_frac)
            reached += f"; linear path {paths[0]:.3f}, attention path {paths[1]:.3f}"
        lines += [
            ("predicted", f"TPOT {ms(p.predicted_tpot_s)}, TTFT {ms(p.predicted_ttft_s)}"),
            ("by the run", f"{run.run_id}: {run.verdict or 'a sweep'}, {reached}"),
        ]
    return [*lines, ("walls", f"memory {ms(p.memory_floor_s)}, compute {ms(p.compute_floor_s)} a step")]


def _wall(bound: str | None) -> str:
    return f"{bound} wall" if bound else "the peak is not known"


def _byte_lines(p: "Plan") -> list[tuple[str, str]]:
    from harness.units import MISSING, num_bytes, percent

    share = percent(p.step_weight_bytes / p.step_bytes)
    cache = f"{p.kv_bytes_per_context_token:,} B a position, {num_bytes(p.kv_cache_bytes)}"
    lines = [
        ("bytes a step", f"{num_bytes(p.step_bytes)}, {share} of it weights"),
        ("weights read", f"{p.step_weight_bytes:,} B of {p.resident_weight_bytes:,} B resident"),
    ]
    if p.experts_assumption:
        lines += [("experts", f"{p.experts_assumption} is assumed where several tokens choose")]
    state = f"{p.state_read_bytes:,} B read and as much written a request, at any context"
    return [*lines, ("cache", f"{cache} in all"), ("state", state if p.state_read_bytes else MISSING)]


def _rank_lines(p: "Plan") -> list[tuple[str, str]]:
    from harness.units import gb_per_s, ms, num_bytes

    if p.tensor_parallel == 1:
        return []
    position = f"{p.rank_kv_bytes_per_context_token:,} B a position"
    link = f"{ms(p.collectives_floor_s)} a step at {gb_per_s(p.link_bytes_per_s)}: {p.link_source}"
    return [
        ("each device", f"{num_bytes(p.rank_step_bytes)} a step, weights {p.rank_weight_read_bytes:,} B, {position}"),
        ("all-reduces", link if p.link_bytes_per_s else "no link of this device is known: not in any figure"),
    ]


def _limit_lines(p: "Plan") -> list[tuple[str, str]]:
    from harness.units import MISSING, gb_per_s

    ridge = f"{p.ridge_flop_per_byte:.0f} FLOP a byte; " if p.ridge_flop_per_byte else ""
    unverified = " (unverified)" if p.roof_unverified else ""
    in_memory = MISSING if p.largest_batch_in_memory is None else f"{p.largest_batch_in_memory:,}"
    largest = p.largest_batch_memory_bound
    memory_bound = p.largest_batch_memory_bound_reason if largest is None else f"memory-bound up to {largest:,}"
    return [
        ("fits in memory", {True: "yes", False: "NO", None: "not known"}[p.fits_in_memory]),
        ("largest batch", f"{in_memory} in memory; {memory_bound}"),
        ("ridge", f"{ridge}this step does {p.step_flop_per_byte:.2f}"),
        ("roof", f"{gb_per_s(p.roof_read_bytes_per_s)}{unverified}: {p.roof_source}"),
    ]


def what_if_rows(p: "Plan") -> list[dict[str, Any]]:
    """The base first."""
    from harness.units import ms

    base = {"what if": "(as planned)", "TPOT floor": ms(p.floor_s), "times": "1.000", "wall": p.bound}
    rows = [base | {"tokens/s": f"{p.floor_tokens_per_s:,.1f}", "fits": _YES[p.fits_in_memory]}]
    for row in p.what_ifs:
        figures = {"TPOT floor": ms(row.floor_s), "times": f"{row.floor_ratio:.3f}", "wall": row.bound}
        rate = {"tokens/s": f"{row.floor_tokens_per_s:,.1f}", "fits": _YES[row.fits_in_memory]}
        rows.append({"what if": row.what} | figures | rate)
    if p.calibration is not None:
        predicted = [p.predicted_tpot_s, *(row.predicted_tpot_s for row in p.what_ifs)]
        rows = [row | {"predicted TPOT": ms(tpot_s)} for row, tpot_s in zip(rows, predicted, strict=True)]
    return rows


_YES = {True: "yes", False: "NO", None: None}


def device_row(p: "Plan") -> dict[str, Any]:
    """One of several devices."""
    from harness.units import MISSING, gb_per_s, ms

    why = (p.largest_batch_memory_bound_reason or "").partition(":")[0]
    return {
        "device": p.device,
        "TPOT floor": ms(p.floor_s),
        "wall": p.bound,
        "tokens/s": f"{p.floor_tokens_per_s:,.1f}",
        "TTFT floor": ms(p.ttft_floor_s),
        "roof": f"{gb_per_s(p.roof_read_bytes_per_s)}{' ?' if p.roof_unverified else ''}",
        "ridge": f"{p.ridge_flop_per_byte:.0f}" if p.ridge_flop_per_byte else MISSING,
        "fits": _YES[p.fits_in_memory],
        "largest batch": p.largest_batch_memory_bound or why,
        "in memory": p.largest_batch_in_memory,
    }
