"""What `harness ab linear|attention|linear-attention` found, as people read it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.specs.ab import AbRecord, AbRow


def is_unstable(record: "AbRecord") -> bool:
    """Whether neighbours had the cores for so long that no time of it is a figure of this machine."""
    from harness.verdict import MAX_CPU_WAIT_FRAC

    return (record.cpu_wait_frac or 0.0) > MAX_CPU_WAIT_FRAC


def ab_table(rows: "Sequence[AbRow]", unstable: bool = False) -> list[dict[str, Any]]:
    """Rows as people read them, without those that this machine can't have. An unstable comparison's are worth nothing
    that could be said in microseconds."""
    from harness.units import MISSING, percent

    return [
        {
            "for": row.role,
            "shape": row.shape,
            "backend": row.label,
            "us a call": f"{row.call_s * 1e6:.1f}" if row.call_s else MISSING,
            "GB/s": f"{row.bytes_per_s / 1e9:.1f}" if row.bytes_per_s else MISSING,
            "of probe": percent(row.probe_frac),
            "of peak": percent(row.peak_frac),
            "times the baseline": _ratio(row),
            "rounds": row.num_pairs or MISSING,
            "outcome": _outcome(row),
            "us a token": _worth(row, unstable),
        }
        for row in rows
        if row.status != "unsupported"
    ]  # fmt: skip


def lines_below(record: "AbRecord") -> list[str]:
    """What a table of the rows does not say of them."""
    left_out = [f"left out  {what}" for what in record.left_out]
    return [*not_here_lines(record.rows), *left_out, *precision_lines(record)]


def not_here_lines(rows: "Sequence[AbRow]") -> list[str]:
    """Each backend that some problem could not have, with its reasons once and not in a row for each problem."""
    reasons: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.status == "unsupported":
            reasons.setdefault(row.backend, {})[row.why] = None
    return [f"not here  {backend}: {'; '.join(why)}" for backend, why in reasons.items()]


def precision_lines(record: "AbRecord") -> list[str]:
    """How many problems' rounds ended before their ratios were as precise as wanted, where some did."""
    reached: dict[str, bool] = {}
    again = [row.confirmed.precision_reached for row in record.rows if row.confirmed is not None]
    for row in record.rows:
        if row.precision_reached is not None:
            reached[row.shape] = reached.get(row.shape, True) and row.precision_reached
    counts = (
        (list(reached.values()).count(False), f"of {len(reached)} problems"),
        (again.count(False), f"of {len(again)} winners measured once more"),
    )
    limit, wanted = record.config.max_blocks, f"{record.config.precision * 100:g} %"
    return [
        f"precision  {missed} {of} stopped at {limit} rounds, before {wanted} was reached: --max-blocks, --precision"
        for missed, of in counts
        if missed
    ]


def _outcome(row: "AbRow") -> str:
    if row.status != "ok":
        return f"{row.status}: {row.why}"
    imprecise = "" if row.precision_reached is not False else "precision not reached"
    said = "; ".join(filter(None, (row.note, row.why, imprecise)))
    return f"{row.outcome} ({said})" if said else row.outcome


def worth_lines(rows: "Sequence[AbRow]", unstable: bool) -> list[str]:
    """What all winners together are worth, by their fresh measurements, where these are stable."""
    confirmed = [row.confirmed for row in rows if row.confirmed is not None]
    if not confirmed:
        return []
    held = sum(found.holds for found in confirmed)
    lines = [f"winners, measured once more: {held} of {len(confirmed)} win again"]
    batches = () if unstable else dict.fromkeys(row.problem.m for row in rows if row.op == "linear")
    for batch in batches:
        of_batch = [row for row in rows if row.problem.m == batch]
        fused, apart = (sum(row.token_gain_s(fused=f) or 0.0 for row in of_batch) for f in (True, False))
        lines.append(
            f"worth at batch {batch}: {fused * 1e6:.0f} us a step with fused products, {apart * 1e6:.0f} us without"
        )
    return lines


def _worth(row: "AbRow", unstable: bool) -> str:
    from harness.units import MISSING

    found = row.confirmed
    if found is None:
        return MISSING
    if not found.holds:
        return "did not win again"
    if unstable:
        return MISSING
    return f"{found.call_gain_s * (row.calls_per_token or row.unfused_calls_per_token) * 1e6:.0f}"


def _ratio(row: "AbRow") -> str:
    if row.ratio_to_baseline is None or row.ratio_interval is None:
        return "-"
    low, high = row.ratio_interval
    return f"{row.ratio_to_baseline:.2f} [{low:.2f}, {high:.2f}]"
