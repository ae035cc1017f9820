"""A selection table: which backend won each problem of a model on a device. `harness ab --save` writes it, engines take
it with `selection: FILE`."""

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Literal

from pydantic import PositiveFloat, PositiveInt, model_validator

from harness.specs.ab import AbRow, Op
from harness.specs.base import Frozen
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem, Parameters

Problem = LinearProblem | AttentionProblem | DeltaProblem
_PROBLEMS: dict[Op, type[Problem]] = {
    "linear": LinearProblem, "attention": AttentionProblem, "linear-attention": DeltaProblem,
}  # fmt: skip


class Evidence(Frozen):
    """Why a backend was chosen."""

    run_id: str
    """Of the A/B, whose record has every sample."""
    outcome: Literal["winner", "no difference shown", "baseline", "-"]
    """-: nothing else could do it."""
    call_s: PositiveFloat
    bytes_per_s: PositiveFloat | None = None
    probe_frac: PositiveFloat | None = None
    baseline: str
    ratio_to_baseline: PositiveFloat | None = None
    """Of the fresh measurement where a winner was measured once more."""
    ratio_interval: tuple[float, float] | None = None
    num_pairs: int = 0


class SelectionEntry(Frozen):
    """One problem and the backend for it."""

    op: Op
    role: str
    problem: Problem
    """With m: the batch of a decode step, or a chunk's length."""
    context: PositiveInt | None = None
    """attention: filled places when it was measured."""
    backend: str
    parameters: Parameters = {}
    contest_legal: bool
    evidence: Evidence

    @model_validator(mode="after")
    def _problem_of_its_operation(self) -> "SelectionEntry":
        if not isinstance(self.problem, _PROBLEMS[self.op]):
            raise ValueError(f"the problem is not one of {self.op}")
        return self

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What a later measurement replaces."""
        return self.op, self.problem.model_dump_json(), self.context


class SelectionTable(Frozen):
    """configs/selections/<device>/<model>-<dtype>.yaml, or <model>-<dtype>-tp<workers>.yaml"""

    schema_version: Literal[1] = 1
    model: str
    dtype: str
    tensor_parallel: PositiveInt = 1
    """Workers that share every layer: the problems are one worker's."""
    device: DeviceInfo
    versions: dict[str, str]
    """Of the packages, compiler and kernel sources that the figures are of."""
    entries: tuple[SelectionEntry, ...]
    fingerprint: str = ""
    """Hash of all the rest: a table that was edited by hand is no measurement any more."""

    def sealed(self) -> "SelectionTable":
        """The same with its own fingerprint."""
        return self.model_copy(update={"fingerprint": self._hash()})

    @property
    def is_whole(self) -> bool:
        """Whether nothing was changed since it was sealed."""
        return self.fingerprint == self._hash()

    def find(self, op: Op, problem: Problem) -> SelectionEntry | None:
        """The entry for a problem: a product's is exact; attention's is of the same heads and the nearest context and
        chunk, the delta rule's of the nearest chunk, and a decode step is never a prompt's."""
        alike = [entry for entry in self.entries if entry.op == op and _is_alike(entry.problem, problem)]
        return min(alike, key=lambda entry: _distance(entry, problem), default=None)

    def merged(self, entries: Iterable[SelectionEntry]) -> "SelectionTable":
        """With these instead of, or beside, what it had; sealed."""
        by_key = {entry.key: entry for entry in (*self.entries, *entries)}
        return self.model_copy(update={"entries": tuple(by_key.values())}).sealed()

    def _hash(self) -> str:
        content = self.model_dump(mode="json", exclude={"fingerprint"})
        if self.tensor_parallel == 1:  # as the tables that were written before there were others
            del content["tensor_parallel"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def entries_of(rows: Iterable[AbRow], run_id: str, baseline: str) -> list[SelectionEntry]:
    """One for each problem that anything was timed on: the winner; of several that share the place the one with the
    smallest median; and the baseline, if it was timed, where the winner did not win again or was refused then."""
    by_problem: dict[str, list[AbRow]] = {}
    for row in rows:
        if row.call_s is not None:
            by_problem.setdefault(row.shape, []).append(row)
    chosen = (_best(timed, baseline) for timed in by_problem.values())
    return [_entry(row, run_id, baseline) for row in chosen if row is not None]


def _best(rows: list[AbRow], baseline: str) -> AbRow | None:
    """A winner that was not measured once more is the baseline itself, or had none beside it."""
    winner = next((row for row in rows if row.outcome == "winner"), None)
    if winner is not None and (winner.confirmed is None or winner.confirmed.holds):
        return winner
    first = [row for row in rows if row.outcome in ("no difference shown", "-")]
    if first:
        return min(first, key=lambda row: row.call_s or math.inf)
    return next((row for row in rows if row.backend == baseline), None)


def _entry(row: AbRow, run_id: str, baseline: str) -> SelectionEntry:
    fresh = row.confirmed
    evidence = Evidence(
        run_id=run_id, outcome="-" if row.outcome == "slower" else row.outcome, call_s=row.call_s or math.inf,
        bytes_per_s=row.bytes_per_s, probe_frac=row.probe_frac, baseline=baseline,
        ratio_to_baseline=fresh.ratio_to_baseline if fresh else row.ratio_to_baseline,
        ratio_interval=fresh.ratio_interval if fresh else row.ratio_interval,
        num_pairs=fresh.num_pairs if fresh else row.num_pairs,
    )  # fmt: skip
    return SelectionEntry(
        op=row.op, role=row.role, problem=row.problem, context=row.context, backend=row.backend,
        parameters=row.parameters, contest_legal=row.contest_legal, evidence=evidence,
    )  # fmt: skip


def _is_alike(measured: Problem, asked: Problem) -> bool:
    if isinstance(measured, LinearProblem) or isinstance(asked, LinearProblem):
        return measured == asked
    both_decode_or_both_prefill = (measured.m == 1) == (asked.m == 1)
    free = {"m", "max_context"}
    return both_decode_or_both_prefill and measured.model_dump(exclude=free) == asked.model_dump(exclude=free)


def _distance(entry: SelectionEntry, asked: Problem) -> float:
    """In logarithms, of the context and of the chunk."""
    chunk = abs(math.log(entry.problem.m / asked.m))
    if not isinstance(asked, AttentionProblem) or entry.context is None:
        return chunk
    return abs(math.log(entry.context / asked.max_context)) + chunk
