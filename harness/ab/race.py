"""The timed part of an A/B: sides in turning order on one problem, beside the probe."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.ab.interleave import turn
from harness.ab.judge import is_settled, outrun
from harness.ab.sampler import Sampler
from harness.ab.shapes import Case
from harness.ab.side import Side, Unfair, check_side, refuse_growth, refuse_shared_change, refuse_spot
from harness.probe.base import Probe
from harness.records import RunFolder
from harness.roof import reading_rate
from harness.specs.ab import AbConfig, AbProbeEvent, AbRow, AbSampleEvent, Pass

if TYPE_CHECKING:
    from harness.ab.operands.base import Operands

TRIAL_BLOCKS = 3


@dataclass
class Timing:
    """Samples of one problem."""

    call_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds a call by label and block, of the sides that lasted to the end."""
    probe_rates: list[float] = field(default_factory=list)
    """Before each block and after the last; empty without a probe."""
    grown_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Of memory, in each side's own samples together."""
    refused: dict[str, AbRow] = field(default_factory=dict)
    """Rows of those that did not last."""


class Race:
    """Runs one problem after another."""

    def __init__(
        self, config: AbConfig, sampler: Sampler, probe: Probe | None, folder: RunFolder, outlasts_caches: bool
    ) -> None:
        """outlasts_caches: no cache holds what the operands rotate through, so that nothing outruns memory."""
        self._config, self._sampler, self._probe, self._folder = config, sampler, probe, folder
        self._outlasts_caches = outlasts_caches

    def run(self, case: Case, operands: Operands, sides: Sequence[Side], within: Pass = "compare") -> Timing:
        """Blocks until ratios are as precise as wanted, at least and at most as many as configured; then every side is
        checked once more."""
        timing, place, config = Timing(), itertools.count(), self._config
        baseline = next((side.row.label for side in sides if side.row.backend == config.compared_to), "")
        for block in range(config.max_blocks):
            self._read(case, block, timing, within)
            self._block(case, operands, sides, block, place, timing, within)
            if block + 1 >= config.min_blocks and is_settled(timing.call_s, baseline, config.precision):
                break
        self._read(case, block + 1, timing, within)
        for side in sides:
            self._check(side, operands, timing)
        return timing

    def try_out(self, case: Case, operands: Operands, sides: Sequence[Side]) -> str | None:
        """Label of the fastest in a few blocks, for choosing among settings; leaves no samples."""
        timing, place = Timing(), itertools.count()
        for block in range(TRIAL_BLOCKS):
            self._block(case, operands, sides, block, place, timing, None)
        return min(timing.call_s, key=lambda label: statistics.median(timing.call_s[label]), default=None)

    def _block(
        self, case: Case, operands: Operands, sides: Sequence[Side], block: int, place: itertools.count[int],
        timing: Timing, within: Pass | None,
    ) -> None:  # fmt: skip
        """Every side that is still in the race once, on new inputs."""
        operands.renew()
        for side in turn([side for side in sides if side.row.label not in timing.refused], block):
            self._sample(case, operands, side, block, place, timing, within)

    def _sample(
        self, case: Case, operands: Operands, side: Side, block: int, place: itertools.count[int], timing: Timing,
        within: Pass | None,
    ) -> None:  # fmt: skip
        """One sample; a side that raises is out, and one that keeps what it does not say or leaves a wrong result."""
        label, num_calls = side.row.label, self._num_calls(side, timing)
        places = [next(place) % len(side.launches) for _ in range(num_calls + 1)]
        operands.mark(places[-1], self._sampler.calls_a_place)
        try:
            time_s, grown_bytes = self._seconds(side, places)
            timing.grown_bytes[label] += grown_bytes
            refuse_growth(timing.grown_bytes[label], side.kept_bytes)
            refuse_spot(operands, places[-1])
        except Unfair as found:
            self._refuse(side, timing, found.status, found.why)
            return
        except Exception as error:  # noqa: BLE001 - anybody's backend may raise anything
            self._refuse(side, timing, "failed", f"{type(error).__name__}: {error}")
            return
        timing.call_s[label].append(time_s / num_calls)
        if within is not None:
            self._folder.append(
                AbSampleEvent(
                    shape=case.label, backend=label, block=block, num_calls=num_calls, time_s=time_s, within=within
                )
            )

    def _seconds(self, side: Side, places: Sequence[int]) -> tuple[float, int]:
        """(seconds of the calls at all places but the first, by how much memory grew meanwhile)."""
        before = self._sampler.memory_bytes()
        self._sampler.settle()
        time_s = self._sampler.seconds([side.launches[place] for place in places], side.uses_pool)
        return time_s, self._sampler.memory_bytes() - before

    def _num_calls(self, side: Side, timing: Timing) -> int:
        """As many as the sample's length has room for, going by the side's sample before, or by its first call; with
        the one that is not timed no place comes twice, so that a result kept from that one is wrong at the last."""
        before = timing.call_s.get(side.row.label, [side.first_call_s])
        return max(1, min(round(self._config.sample_s / before[-1]), len(side.launches) - 1))

    def _read(self, case: Case, block: int, timing: Timing, within: Pass) -> None:
        if self._probe is None:
            return
        self._sampler.settle()  # or the last side's threads make the roof lower than it is
        reading = self._probe.read()
        self._folder.append(AbProbeEvent(shape=case.label, block=block, reading=reading, within=within))
        timing.probe_rates.append(reading_rate(reading))

    def _check(self, side: Side, operands: Operands, timing: Timing) -> None:
        """After the samples: whoever was right before them may have kept a result meanwhile, and nothing that reads its
        operands is faster than memory."""
        if side.row.label in timing.refused:
            return
        try:
            refuse_shared_change(operands, "after the samples")
        except Unfair as found:
            self._refuse(side, timing, found.status, found.why)
            return
        faster = outrun(side.row, timing.call_s[side.row.label], timing.probe_rates) if self._outlasts_caches else ""
        if faster:
            self._refuse(side, timing, "faster-than-memory", faster)
            return
        try:
            check_side(side.launches, operands, self._sampler)
        except Unfair as found:
            self._refuse(side, timing, found.status, f"after its samples: {found.why}")
        except Exception as error:  # noqa: BLE001 - anybody's backend may raise anything
            self._refuse(side, timing, "failed", f"after its samples: {type(error).__name__}: {error}")

    @staticmethod
    def _refuse(side: Side, timing: Timing, status: str, why: str) -> None:
        timing.call_s.pop(side.row.label, None)
        timing.refused[side.row.label] = side.refused(status, why).row
