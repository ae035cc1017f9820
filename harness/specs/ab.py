"""The record of an A/B of backends: what was asked, each sample, and what the samples show."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, model_validator

from harness.specs.base import Count, Frozen, Magnitude
from harness.specs.device import DeviceInfo
from harness.specs.environment import Environment
from harness.specs.probe import ProbeReading, ProbeReport
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem, Parameters
from harness.specs.record import SCHEMA_VERSION, Failure, Status

Op = Literal["linear", "attention", "linear-attention"]
BASELINES: dict[Op, str] = {"linear": "torch", "attention": "torch-sdpa", "linear-attention": "torch-recurrent"}
"""What ratios are taken to unless something else is asked for."""


class AbConfig(Frozen):
    """One run of `harness ab linear`, `ab attention` or `ab linear-attention`."""

    op: Op = "linear"
    model: Annotated[str, Field(min_length=1)]
    """Whose shapes; a known name, a folder or a config.json."""
    device: str = "auto"
    """auto, cpu or cuda."""
    tensor_parallel: Count = 1
    """Workers that share every layer: the problems, the calls and what they are worth are one worker's."""
    batches: tuple[Count, ...] = (1,)
    """linear: rows of x, which are requests decoded together. Each request has attention and a state of its own."""
    contexts: tuple[Count, ...] = (512, 2048, 8192)
    """attention: filled places of the cache."""
    chunks: tuple[Count, ...] = (1, 512)
    """attention and linear-attention: new tokens, 1 in a decode step, more in a chunk of a prompt."""
    backends: tuple[str, ...] = ()
    """Empty: every backend that supports the shape here."""
    baseline: str | None = None
    """What ratios are taken to; null: torch's own."""
    min_blocks: Annotated[Count, Field(ge=2)] = 8
    """Interleaved rounds; each times every backend once, in turning order."""
    max_blocks: Count = 24
    precision: Magnitude = 0.03
    """Rounds end when every ratio is known to about so much: half of its 95 per cent interval, in logarithms. It looks
    at widths and never at who wins, so stopping favours nobody."""
    sample_s: Magnitude = 0.02
    """Aim of one sample's length: as many calls as that takes at the roof, one walk through the rotation at most."""
    threads: Count | None = None
    """CPU. Null: as many as there are cores, and a worker's share of them where several share every layer."""
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _rounds(self) -> "AbConfig":
        if self.max_blocks < self.min_blocks:
            raise ValueError(f"max_blocks is {self.max_blocks}, min_blocks {self.min_blocks}")
        return self

    @property
    def compared_to(self) -> str:
        return self.baseline or BASELINES[self.op]


Pass = Literal["compare", "confirm"]


class AbSampleEvent(Frozen):
    """One sample: so many calls of one backend on one shape, each on memory that no cache holds."""

    event: Literal["ab-sample"] = "ab-sample"
    shape: str
    backend: str
    """With its parameters, where it has some."""
    block: NonNegativeInt
    num_calls: PositiveInt
    time_s: PositiveFloat
    within: Pass = "compare"
    """confirm: the fresh measurement of a winner."""


class AbProbeEvent(Frozen):
    """The roof as it stood before a block of samples, and after the last."""

    event: Literal["ab-probe"] = "ab-probe"
    shape: str
    block: NonNegativeInt
    reading: ProbeReading
    within: Pass = "compare"


AbEvent = Annotated[AbProbeEvent | AbSampleEvent, Field(discriminator="event")]
AB_EVENT: TypeAdapter[AbEvent] = TypeAdapter(AbEvent)
"""Reads a line of an A/B's samples.jsonl."""


class Confirmation(Frozen):
    """A winner beside the baseline once more, on fresh operands, after the comparison: whoever was chosen as the best
    of many was partly chosen for its luck, and luck does not come twice."""

    call_s: PositiveFloat
    baseline_call_s: PositiveFloat
    ratio_to_baseline: PositiveFloat
    ratio_interval: tuple[PositiveFloat, PositiveFloat]
    num_pairs: PositiveInt
    precision_reached: bool | None = None
    """As its row's; null in records that are older."""
    call_gain_s: float
    """What the winner saves a call over the baseline."""

    @property
    def holds(self) -> bool:
        """Whether the winner is shown to be faster here, too."""
        return self.ratio_interval[0] > 1


class AbRow(Frozen):
    """One backend on one shape. Only a backend that is right has a time: others are never ranked."""

    op: Op = "linear"
    role: str
    """What the model uses the shape for; several names where it serves several products."""
    shape: str
    """Tells the samples of one shape from another's."""
    problem: LinearProblem | AttentionProblem | DeltaProblem
    context: PositiveInt | None = None
    """attention: filled places of the cache."""
    calls_per_token: NonNegativeInt
    """Where products of one input are done as one; 0 for those that are parts of such a one."""
    unfused_calls_per_token: NonNegativeInt
    """Where each is done for itself; 0 for those that stand for several."""
    backend: str
    parameters: Parameters = {}
    """Of a backend with a tuning space: those that were the fastest in a short trial."""
    status: Literal[
        "ok", "unsupported", "failed", "incorrect", "changes-operands", "undeclared-memory", "faster-than-memory"
    ]
    """failed: it raised. changes-operands: it wrote to its input or weight. undeclared-memory: it keeps more than it
    says. faster-than-memory: it moves more bytes per second, by its own word, than memory can."""
    why: str = ""
    """Of a winner: why it was not measured once more beside the baseline."""
    note: str = ""
    """What the backend settled on by itself, such as a library's kernel."""
    contest_legal: bool
    call_s: PositiveFloat | None = None
    """Median over blocks."""
    read_bytes: PositiveInt | None = None
    write_bytes: NonNegativeInt = 0
    """Of a recurrent state."""
    flop: PositiveInt | None = None
    bytes_per_s: PositiveFloat | None = None
    """Read and written."""
    flop_per_s: PositiveFloat | None = None
    probe_frac: PositiveFloat | None = None
    """bytes_per_s of the probe readings beside its own samples, the median over blocks; above 1 it outran the probe."""
    peak_frac: PositiveFloat | None = None
    """flop_per_s of the matrix products timed around the shape; null where none was timed."""
    ratio_to_baseline: PositiveFloat | None = None
    """Baseline's time over this one's: above 1 is faster. Geometric mean over blocks."""
    ratio_interval: tuple[float, float] | None = None
    """95 per cent, Student's t over the blocks' log ratios."""
    num_pairs: NonNegativeInt = 0
    precision_reached: bool | None = None
    """Whether its ratio is known to the precision that was wanted; false: rounds ended at max_blocks before. Null where
    there is no ratio."""
    outcome: Literal["winner", "no difference shown", "slower", "baseline", "-"] = "-"
    """winner: faster than every other with an interval that excludes 1."""
    confirmed: Confirmation | None = None
    """Of a winner that is not the baseline."""

    def token_gain_s(self, *, fused: bool = True) -> float | None:
        """What a confirmed winner is worth a token; null where none was confirmed."""
        if self.confirmed is None or not self.confirmed.holds:
            return None
        return self.confirmed.call_gain_s * (self.calls_per_token if fused else self.unfused_calls_per_token)

    @property
    def label(self) -> str:
        """Backend and parameters."""
        settings = " ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.backend} {settings}".strip()


class AbRecord(Frozen):
    """record.json of an A/B of backends."""

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["ab-linear", "ab-attention", "ab-linear-attention"]
    run_id: str
    created_utc: str
    status: Status
    config: AbConfig
    environment: Environment
    device: DeviceInfo
    dtype: str
    probe: ProbeReport | None = None
    rotation_bytes: NonNegativeInt | None = None
    """Memory that the operands rotate through."""
    prepare_s: NonNegativeFloat | None = None
    num_problems: NonNegativeInt | None = None
    """That were asked for: a comparison that was interrupted has rows of the finished ones. Null in older records."""
    left_out: tuple[str, ...] = ()
    """What the model's step does of this operation that no row is of, and why."""
    rows: tuple[AbRow, ...] = ()
    cpu_wait_frac: NonNegativeFloat | None = None
    """CPU: share of the time that other processes kept our threads from their cores, or that was stolen. Sides are
    interleaved, so ratios stand it; times and shares of the probe do not."""
    failure: Failure | None = None

    @property
    def unfinished(self) -> str:
        """How far a comparison came that did not come to its end; empty of one that did."""
        if self.status == "done" or self.num_problems is None:
            return ""
        return f"{len({row.shape for row in self.rows})} of {self.num_problems} problems finished"
