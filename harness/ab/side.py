"""One backend on one problem: bound, checked, and caught where it is not what it says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ab.sampler import Sampler
from harness.ab.shapes import Case
from harness.backends.base import Executor, Launch
from harness.specs.ab import AbRow
from harness.specs.problem import Parameters

if TYPE_CHECKING:
    from harness.ab.operands.base import Bound, Operands

MEMORY_NOISE_BYTES = 64 << 20
"""What a process may grow by without keeping a copy: a library's scratch, freed blocks that the allocator holds."""


FIRST_CALLS_S = 1.0


class Unfair(Exception):
    """A side that may not be timed: its status and why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class Side:
    """A row and, where it may be timed, a launch for each place."""

    row: AbRow
    launches: tuple[Launch, ...] = ()
    first_call_s: float = 0.0
    """How long a call took when nothing was warm: how many a sample has room for."""
    uses_pool: bool = False
    kept_bytes: int = 0
    """By the backend's own word, for all places together."""

    def refused(self, status: str, why: str) -> Side:
        """The same, out of the race."""
        return Side(self.row.model_copy(update={"status": status, "why": why}))


def open_side(
    case: Case, backend: type[Any], parameters: Parameters, operands: Operands, executor: Executor, sampler: Sampler
) -> Side:
    """Bound to every place and checked; a row that says why where it can't be timed."""
    side = Side(_row(case, backend, parameters, operands))
    support = backend.supports(case.problem, executor.device)
    if not support.ok:
        return side.refused("unsupported", support.why)
    try:
        bound, call_s = _bind(backend, parameters, operands, executor, sampler)
        check_side(bound.launches, operands, sampler)
    except Unfair as found:
        return side.refused(found.status, found.why)
    except Exception as error:  # noqa: BLE001 - anybody's backend may raise anything, and must not end the comparison
        return side.refused("failed", f"{type(error).__name__}: {error}")
    row = side.row.model_copy(
        update={"read_bytes": bound.read_bytes, "write_bytes": bound.write_bytes, "note": bound.note}
    )
    return Side(row, bound.launches, call_s, backend.uses_pool, bound.kept_bytes)


def _bind(
    backend: type[Any], parameters: Parameters, operands: Operands, executor: Executor, sampler: Sampler
) -> tuple[Bound, float]:  # fmt: skip
    """(bound, seconds of the last call). Called on every place that a second has time for, and on two: a copy that is
    made late, in a first call, is one too."""
    before = sampler.memory_bytes()
    bound = operands.bind(backend, parameters, executor)
    started = time.perf_counter()
    for number, launch in enumerate(bound.launches):
        call_started = time.perf_counter()
        sampler.run(launch)
        ended = time.perf_counter()
        if number and ended - started > FIRST_CALLS_S:
            break
    refuse_growth(sampler.memory_bytes() - before - bound.kept_bytes, bound.kept_bytes)
    return bound, ended - call_started


def refuse_growth(grown_bytes: int, kept_bytes: int) -> None:
    """Raises Unfair where memory grew by more, beside what the side says it keeps, than is left of any call."""
    if grown_bytes > MEMORY_NOISE_BYTES:
        why = f"keeps {grown_bytes >> 20} MiB more than the {kept_bytes >> 20} it declares"
        raise Unfair("undeclared-memory", why)


def refuse_spot(operands: Operands, place: int) -> None:
    """After a sample that ended at a place: raises Unfair where what it left is not right for that place."""
    fault = operands.spot_fault(place)
    if not fault:
        return
    refuse_shared_change(operands, "while it was timed")
    raise Unfair("incorrect", f"while it was timed: {fault}")


def refuse_shared_change(operands: Operands, when: str) -> None:
    """Raises Unfair where an operand was written to while several sides ran: nobody knows by whom, and no result can be
    told to be right any more."""
    changed = operands.changed()
    if changed:
        why = f"{when}: this side or one beside it wrote to the {changed} that they share"
        raise Unfair("changes-operands", why)


def check_side(launches: tuple[Launch, ...], operands: Operands, sampler: Sampler) -> None:
    """Every check on fresh inputs and a poisoned output, and that nothing but the output changed. Raises Unfair."""
    from harness.ab.operands.base import NUM_CHECKS

    for check in range(NUM_CHECKS):
        sampler.run(launches[operands.pose(check)])
        changed = operands.changed()  # first: what was changed explains a wrong result
        if changed:
            raise Unfair("changes-operands", f"it wrote to its {changed}")
        fault = operands.fault(check)
        if fault:
            raise Unfair("incorrect", fault)


def _row(case: Case, backend: type[Any], parameters: Parameters, operands: Operands) -> AbRow:
    return AbRow(
        op=case.op, role=case.role, shape=case.label, problem=case.problem, context=case.context,
        calls_per_token=case.calls.fused, unfused_calls_per_token=case.calls.unfused,
        backend=backend.name, parameters=parameters, status="ok",
        contest_legal=backend.contest_legal, flop=operands.flop,
    )  # fmt: skip
