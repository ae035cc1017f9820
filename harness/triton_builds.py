"""Launches of Triton's kernels made for a card that need not be here, and what came of it, as rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from harness.absent_card import Compiled, Excess, compiling_for, excess_of
from harness.specs.build import Build
from harness.specs.problem import Parameters

MAX_WHY = 200

Bind = Callable[[Parameters], Iterable[Callable[[], None]]]
"""The launches of one setting; it may raise anything, and so may they."""


def build_settings(target: str, kernel: str, settings: Sequence[Parameters], bind: Bind) -> list[Build]:
    """One row of all settings that such a card can launch, if there are any, and one for each that it can't.

    Raises UnavailableError where Triton can't compile for the target at all.
    """
    started = time.perf_counter()
    faults: list[str] = []
    fitting: list[Compiled] = []
    row = Build(target=target, what="triton", kernel=kernel, outcome="cached")
    too_large = []
    with compiling_for(target) as found:
        for parameters in settings:
            before = len(found)
            try:
                for launch in bind(parameters):
                    launch()
            except Exception as error:  # noqa: BLE001 - a compiler may raise anything; other settings go on
                excess = excess_of(error)
                if excess is not None:
                    too_large.append(row.model_copy(update=_refusal(target, parameters, excess)))
                    continue
                reason = " ".join(str(error).split())[-MAX_WHY:]  # Triton quotes the source first
                faults.append(f"{parameters or 'usual'}: {type(error).__name__}: {reason}")
            fitting += found[before:]
    if len(too_large) == len(settings):
        return too_large
    update = {
        "outcome": "failed" if faults else "built" if any(each.is_new for each in fitting) else "cached",
        "why": f"{len(faults)} of {len(settings)} settings, {faults[0]}" if faults else None,
        "time_s": time.perf_counter() - started,
        "num_bytes": sum(each.num_bytes for each in fitting) if fitting else None,
        "shared_bytes": max((each.shared_bytes for each in fitting), default=None),
    }
    return [row.model_copy(update=update), *too_large]


def _refusal(target: str, parameters: Parameters, excess: Excess) -> dict[str, str | int | None]:
    """What the row of a setting that can't be launched says."""
    is_memory = excess.of == "shared memory"
    unit = " B of" if is_memory else ""
    return {
        "outcome": "too large",
        "why": f"{parameters or 'usual'}: a block wants {excess.wanted:,}{unit} {excess.of},"
        f" {target} has {excess.limit:,}",
        "shared_bytes": excess.wanted if is_memory else None,
    }
