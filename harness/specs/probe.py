"""What a probe found: the denominators of every verdict."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from harness.specs.base import Frozen


class ProbeReading(Frozen):
    """A few passes over a buffer, each of which proved by its checksum that it read every byte."""

    pass_bytes: PositiveInt
    passes_s: tuple[PositiveFloat, ...] = Field(min_length=1)
    variant: str
    """The reader: instructions, unroll, prefetch distance, threads."""


class PeakReading(Frozen):
    """Large matrix products on random data, one after another: their mean rate."""

    dtype: str
    flop_per_s: PositiveFloat


class SweepPoint(Frozen):
    """One reader of the sweep, or one thread count of the curve."""

    variant: str
    num_threads: PositiveInt
    read_bytes_per_s: PositiveFloat


class ProbeReport(Frozen):
    """The survey before the run. What could not be measured is null."""

    method: Literal["verified-read", "torch-reduction", "scripted"]
    """torch-reduction: no compiler was here; a weaker reader, so utilization may read too high."""
    variant: str
    """The best reader, which all later readings use."""
    num_threads: PositiveInt
    buffer_bytes: PositiveInt
    """Of the large buffer."""
    huge_pages: bool | None
    read_bytes_per_s: PositiveFloat
    """Best reader on the large buffer: median of its passes."""
    reading_buffer_bytes: PositiveInt
    """What the bracketing readings read: the engine's working set where that is 1 to 4 times the cache."""
    working_set_read_bytes_per_s: PositiveFloat | None = None
    """Best reader at the engine's working-set size, where that is 1 to 4 times the cache."""
    copy_bytes_per_s: PositiveFloat | None = None
    """Bytes read plus bytes written, each counted once."""
    write_bytes_per_s: PositiveFloat | None = None
    sweep: tuple[SweepPoint, ...] = ()
    thread_curve: tuple[SweepPoint, ...] = ()
    peak_flop_per_s: dict[str, PositiveFloat] = {}
    """Fastest matrix product on random data, by type, in whatever arithmetic that can do it."""
    peak_arithmetic: dict[str, str] = {}
    """The type that each of those was computed in: a CPU without bf16's instructions does BF16 faster in F32."""
    baseline_read_bytes_per_s: PositiveFloat | None = None
    """What this machine read when it was first probed."""
