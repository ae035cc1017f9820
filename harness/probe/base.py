"""What a probe gives: the denominators of every verdict."""

from __future__ import annotations

from typing import Protocol

from harness.specs.probe import PeakReading, ProbeReading, ProbeReport


class Probe(Protocol):
    """A verified reader of the device's memory."""

    def survey(self, working_set_bytes: int | None) -> ProbeReport:
        """Once a run, before the engine is measured: finds the best reader over a sweep, and measures copy, write,
        the curve over threads and the peak of matrix products.

        working_set_bytes: bytes that one step of the engine reads, for the probe at that size; None when unknown.
        """

    def read(self, reading_s: float | None = None) -> ProbeReading:
        """A reading with the best reader, for about so long; null: as configured. survey() must have run."""

    def read_peak(self, dtype: str) -> PeakReading | None:
        """What matrix products of this type (safetensors name) reach now; null where none can be timed."""

    def close(self) -> None: ...
