"""What a run leaves behind: the events as they were measured, and the record that is derived from them.

Everything measured is an event, one line of `samples.jsonl`, appended as it happens. Everything derived stands in
`record.json` and can be computed again from the events.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from harness.specs.base import Frozen
from harness.specs.device import DeviceInfo
from harness.specs.environment import Environment
from harness.specs.model import ModelSpec
from harness.specs.run import RunConfig
from harness.specs.step import DecodeTraffic

SCHEMA_VERSION: Literal[1] = 1


# --- the probe -------------------------------------------------------------------------------------------------


class ProbeReading(Frozen):
    """A few passes over a buffer, each of which proved by its checksum that it read every byte."""

    pass_bytes: PositiveInt
    passes_s: tuple[PositiveFloat, ...] = Field(min_length=1)
    variant: str
    """The reader: instructions, unroll, prefetch distance, threads."""


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
    """Largest matrix product on random data, by type."""
    baseline_read_bytes_per_s: PositiveFloat | None = None
    """What this machine read when it was first probed."""


# --- the engine ------------------------------------------------------------------------------------------------


class LaunchClass(Frozen):
    """Decode time of one kind of launch, per step."""

    name: str
    """linear, attention, elementwise, sampling."""
    step_s: NonNegativeFloat
    read_bytes: NonNegativeInt
    """Bytes of weights and cache that this kind reads in the step; 0 where it reads neither."""


class Evidence(Frozen):
    """Where decode time goes, by an instrumented pass that is not part of the timed repeats; unknown is null."""

    num_steps: NonNegativeInt = 0
    """Steps the instrumented pass took; 0: the engine can't tell."""
    step_s: PositiveFloat | None = None
    """Mean step of the instrumented pass itself: instruments cost time, so shares are taken of this."""
    outside_kernels_s: NonNegativeFloat | None = None
    """Per step: launches, the host's loop, synchronization."""
    communication_s: NonNegativeFloat | None = None
    classes: tuple[LaunchClass, ...] = ()
    timeline_gaps_s: NonNegativeFloat | None = None
    """Idle time between kernels on the device's own clock: null until a trace is read."""


class OpChoice(Frozen):
    """Which backend ran an operation of one shape, in which layers."""

    op: str
    """linear or attention; elementwise for the engine's own kernels."""
    role: str
    """qkv, o, gate_up, down, lm_head, decode, prefill, ..."""
    shape: str
    backend: str
    contest_legal: bool
    layers: str
    """As ranges: 0-27."""
    phase: Literal["decode", "prefill"]
    read_bytes: NonNegativeInt | None = None
    """What the backend says that one call reads."""
    fallback_from: str | None = None
    """The backend that was asked for and can't do this problem."""
    fallback_reason: str | None = None


class EngineReport(Frozen):
    """What ran."""

    kind: str
    dtype: str
    num_threads: PositiveInt | None = None
    ops: tuple[OpChoice, ...] = ()
    graph: bool = False
    """Decode step captured as one graph."""
    load_s: NonNegativeFloat | None = None
    prepare_s: NonNegativeFloat | None = None
    """Backends' one-time preparation of the weights."""
    prepare_bytes: NonNegativeInt | None = None
    """Memory that preparation added to the weights as loaded."""
    kernel_reads: tuple[SweepPoint, ...] = ()
    """Reads of the model's largest weight by its own kernels, verified, each beside a probe reading."""
    notes: tuple[str, ...] = ()


# --- events: samples.jsonl -------------------------------------------------------------------------------------


class ProbeEvent(Frozen):
    """A bracketing reading. Each repeat has two of its own: shared ones would make neighbours err together."""

    event: Literal["probe"] = "probe"
    repeat: NonNegativeInt
    place: Literal["before", "after"]
    reading: ProbeReading


class KernelReadEvent(Frozen):
    """A kernel's verified read of a weight, timed beside a probe reading: can show that the probe is not the roof."""

    event: Literal["kernel_read"] = "kernel_read"
    kernel: str
    read_bytes: PositiveInt
    calls_s: tuple[PositiveFloat, ...] = Field(min_length=1)
    reading: ProbeReading


class SendEvent(Frozen):
    """The request leaves."""

    event: Literal["send"] = "send"
    repeat: NonNegativeInt
    time_s: float
    num_prompt_tokens: PositiveInt


class ChunkEvent(Frozen):
    """Tokens arrive."""

    event: Literal["chunk"] = "chunk"
    repeat: NonNegativeInt
    time_s: float
    token_ids: tuple[int, ...]
    text: str = ""


class EndEvent(Frozen):
    """The request is over."""

    event: Literal["end"] = "end"
    repeat: NonNegativeInt
    time_s: float


class EvidenceEvent(Frozen):
    """The instrumented pass's answer."""

    event: Literal["evidence"] = "evidence"
    evidence: Evidence


Event = Annotated[
    ProbeEvent | KernelReadEvent | SendEvent | ChunkEvent | EndEvent | EvidenceEvent, Field(discriminator="event")
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


# --- derived ---------------------------------------------------------------------------------------------------


class RequestFigures(Frozen):
    """One repeat. Definitions: docs/definitions.md."""

    repeat: NonNegativeInt
    num_prompt_tokens: PositiveInt
    num_output_tokens: NonNegativeInt
    ttft_s: PositiveFloat | None
    tpot_s: PositiveFloat | None
    """(last token - first token) / (n - 1); null for fewer than two tokens."""
    throughput_tokens_per_s: PositiveFloat | None
    roof_read_bytes_per_s: PositiveFloat | None
    """From the readings just before and after this repeat."""
    util_frac: PositiveFloat | None


VerdictName = Literal["underfed", "approaching", "at-wall", "invalid", "unstable", "no-roof"]


class Verdict(Frozen):
    """The judgement of a decode and what it rests on."""

    verdict: VerdictName
    reason: str
    """Why this verdict, in one sentence with its figures."""
    cause: str
    """What keeps the decode from the wall, by evidence; `unknown` where there is none."""
    next_step: str


class Analysis(Frozen):
    """One self-describing row: what was run, on what, and how far from the wall. Null where not known."""

    run_id: str
    name: str
    harness_version: str
    model: str
    precision: str
    hardware: str
    engine: str
    kernels: dict[str, str]
    """Backend by kind of layer and phase, as it RAN."""
    batch: PositiveInt = 1
    concurrency: PositiveInt = 1
    num_repeats: NonNegativeInt
    input_tokens: PositiveInt | None
    output_tokens: NonNegativeInt | None
    """Median over repeats."""

    verdict: VerdictName
    reason: str
    cause: str
    next_step: str
    util_frac: PositiveFloat | None
    """Sum of the decode steps' floors over the sum of their measured times."""
    util_interval_frac: tuple[float, float] | None
    """95 per cent, over repeats."""
    util_interval_method: str | None

    ttft_s: PositiveFloat | None
    """Median over repeats; request sent to first token, client side, tokenization included."""
    tpot_s: PositiveFloat | None
    """Median over repeats."""
    tpot_p99_s: PositiveFloat | None
    tpot_spread_s: NonNegativeFloat | None
    """Largest minus smallest over repeats."""
    itl_s: PositiveFloat | None
    """Median gap between chunks, all repeats pooled."""
    itl_p99_s: PositiveFloat | None
    percentile_method: Literal["linear"] = "linear"
    throughput_tokens_per_s: PositiveFloat | None
    """Output tokens over last completion minus send; median over repeats."""
    prefill_time_frac: PositiveFloat | None
    decode_time_frac: NonNegativeFloat | None

    bytes_source: Literal["logical", "counters"]
    tensors_source: Literal["headers", "config"]
    weight_read_bytes: PositiveInt
    embedding_row_bytes: PositiveInt
    kv_bytes_per_context_token: NonNegativeInt
    state_read_bytes: NonNegativeInt
    state_write_bytes: NonNegativeInt
    step_bytes: PositiveFloat | None
    """Mean over the run's decode steps."""
    step_flop: PositiveFloat | None
    """Mean over the run's decode steps."""
    prefill_flop: PositiveInt | None
    floor_s: PositiveFloat | None
    """Mean over the run's decode steps: step bytes over roof."""

    roof_read_bytes_per_s: PositiveFloat | None
    roof_source: str | None
    probe_read_bytes_per_s: PositiveFloat | None
    """Median of the bracketing readings."""
    probe_drift_frac: float | None
    """Last reading over first, minus one."""
    roof_uncertainty_frac: PositiveFloat | None
    datasheet_bytes_per_s: PositiveFloat | None = None
    achieved_bytes_per_s: PositiveFloat | None
    mfu_frac: PositiveFloat | None
    """Decode: FLOP over time over the measured matrix-product peak of the type."""
    prefill_mfu_frac: PositiveFloat | None
    outside_kernels_frac: NonNegativeFloat | None
    timeline_gaps_s: NonNegativeFloat | None

    warnings: tuple[str, ...] = ()


class Failure(Frozen):
    """Why a run ended without a result."""

    what: str
    mend: str
    exit_code: int


Status = Literal["running", "done", "failed", "interrupted"]


class RunRecord(Frozen):
    """record.json."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    created_utc: str
    kind: Literal["bench"] = "bench"
    status: Status
    """`running` in the file of a run whose process is gone shows as `interrupted`."""
    config: RunConfig
    environment: Environment
    model: ModelSpec
    device: DeviceInfo | None = None
    traffic: DecodeTraffic | None = None
    datasheet_bytes_per_s: PositiveFloat | None = None
    """Published bandwidth of the device, where its data sheet is known (`harness devices`)."""
    probe: ProbeReport | None = None
    engine: EngineReport | None = None
    requests: tuple[RequestFigures, ...] = ()
    analysis: Analysis | None = None
    failure: Failure | None = None
