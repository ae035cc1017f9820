"""Amdahl's law on a trace: what the step would take if one class reached its roof, or the gaps were gone. Pure."""

from collections.abc import Sequence

from harness.roofline import frac
from harness.specs.profile import ClassRow, WhatIf


def what_ifs(rows: Sequence[ClassRow], wall_s: float, gaps_s: float | None) -> tuple[WhatIf, ...]:
    """The largest gain first. A class whose floor is not known is taken away whole: no work on it can give more."""
    gains: dict[str, float] = {}
    if gaps_s:
        gains["no gaps"] = gaps_s
    for row in rows:
        if row.floor_s is None:
            gains[f"{row.kernel_class} gone"] = row.time_s
        else:
            gains[f"{row.kernel_class} at its roof"] = max(0.0, row.time_s - row.floor_s)
    reachable = [gain for what, gain in gains.items() if not what.endswith(" gone")]
    if len(reachable) > 1:
        gains["all of these but what is gone"] = sum(reachable)
    return tuple(_what_if(what, wall_s, gain) for what, gain in sorted(gains.items(), key=lambda item: -item[1]))


def _what_if(what: str, wall_s: float, gain_s: float) -> WhatIf:
    """Where streams overlap, a class's time is more than its part of the wall: nothing goes below zero."""
    left = max(0.0, wall_s - gain_s)
    return WhatIf(what=what, wall_s=left, speedup=frac(wall_s, left))
