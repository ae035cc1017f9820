"""The record of an A/B of backends: what was asked, each sample, and what the samples show."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from harness.specs.base import Count, Frozen
from harness.specs.device import DeviceInfo
from harness.specs.environment import Environment
from harness.specs.probe import ProbeReading, ProbeReport
from harness.specs.problem import LinearProblem
from harness.specs.record import SCHEMA_VERSION, Failure, Status


class AbConfig(Frozen):
    """One run of `harness ab linear`."""

    model: Annotated[str, Field(min_length=1)]
    """Whose shapes; a known name, a folder or a config.json."""
    batches: tuple[Count, ...] = (1,)
    """Rows of x: requests decoded together."""
    backends: tuple[str, ...] = ()
    """Empty: every backend that supports the shape here."""
    baseline: str = "torch"
    """What ratios are taken to."""
    blocks: Count = 12
    """Interleaved rounds; each times every backend once, in turning order."""
    sample_s: PositiveFloat = 0.02
    """Aim of one sample's length: as many calls as that takes at the roof, one walk through the rotation at most."""
    threads: Count | None = None
    seed: NonNegativeInt = 0


class AbSampleEvent(Frozen):
    """One sample: so many calls of one backend on one shape, each on weights that no cache holds."""

    event: Literal["ab-sample"] = "ab-sample"
    shape: str
    backend: str
    block: NonNegativeInt
    num_calls: PositiveInt
    time_s: PositiveFloat


class AbProbeEvent(Frozen):
    """The roof as it stood beside a block of samples."""

    event: Literal["ab-probe"] = "ab-probe"
    shape: str
    block: NonNegativeInt
    reading: ProbeReading


AbEvent = Annotated[AbProbeEvent | AbSampleEvent, Field(discriminator="event")]
AB_EVENT: TypeAdapter[AbEvent] = TypeAdapter(AbEvent)
"""Reads a line of an A/B's samples.jsonl."""


class AbRow(Frozen):
    """One backend on one shape. An incorrect or unsupported backend has no time: it is never ranked."""

    role: str
    """What the model uses the shape for; several names where it serves several products."""
    shape: str
    """m x n x k, and whether a bias is added: what tells the samples of one shape from another's."""
    problem: LinearProblem
    calls_per_token: PositiveInt
    backend: str
    status: Literal["ok", "unsupported", "incorrect"]
    why: str = ""
    contest_legal: bool
    call_s: PositiveFloat | None = None
    """Median over blocks."""
    read_bytes: PositiveInt | None = None
    read_bytes_per_s: PositiveFloat | None = None
    probe_frac: PositiveFloat | None = None
    """Of the probe readings beside its own samples, the median over blocks; above 1 the kernel outran the probe."""
    ratio_to_baseline: PositiveFloat | None = None
    """Baseline's time over this one's: above 1 is faster. Geometric mean over blocks."""
    ratio_interval: tuple[float, float] | None = None
    """95 per cent, Student's t over the blocks' log ratios."""
    num_pairs: NonNegativeInt = 0
    outcome: Literal["winner", "no difference shown", "slower", "baseline", "-"] = "-"
    """winner: faster than every other with an interval that excludes 1."""
    token_gain_s: float | None = None
    """What this backend saves a token on this shape over the baseline; as measured here, not re-measured."""


class AbRecord(Frozen):
    """record.json of an A/B."""

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["ab-linear"] = "ab-linear"
    run_id: str
    created_utc: str
    status: Status
    config: AbConfig
    environment: Environment
    device: DeviceInfo
    probe: ProbeReport | None = None
    rotation_bytes: NonNegativeInt | None = None
    """Memory that the weights rotate through."""
    prepare_s: NonNegativeFloat | None = None
    rows: tuple[AbRow, ...] = ()
    failure: Failure | None = None
