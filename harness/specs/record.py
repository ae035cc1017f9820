"""record.json: what a run was, and the figures derived from its events."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from harness.specs.base import Frozen
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport
from harness.specs.environment import Environment
from harness.specs.model import ModelSpec
from harness.specs.probe import ProbeReport
from harness.specs.run import RunConfig
from harness.specs.step import DecodeTraffic

SCHEMA_VERSION: Literal[2] = 2


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
    """The one roof that gives this repeat the floor that its stretches between readings have."""
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
    """95 per cent over repeats; of a single one the roof's uncertainty. util_interval_method says which."""
    util_interval_method: str | None

    ttft_s: PositiveFloat | None
    """Median over repeats; request sent to first token, client side, tokenization included."""
    tpot_s: PositiveFloat | None
    """Median over repeats."""
    tpot_p99_s: PositiveFloat | None
    tpot_spread_s: NonNegativeFloat | None
    """Largest minus smallest over repeats."""
    itl_s: NonNegativeFloat | None
    """Median gap between chunks, all repeats pooled."""
    itl_p99_s: NonNegativeFloat | None
    percentile_method: Literal["linear"] = "linear"
    throughput_tokens_per_s: PositiveFloat | None
    """Output tokens over last completion minus send; median over repeats."""
    prefill_time_frac: NonNegativeFloat | None
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
    """Mean of the readings before and after each decode step, the median over steps."""
    probe_drift_frac: float | None
    """Last reading over first, minus one."""
    roof_uncertainty_frac: PositiveFloat | None
    datasheet_bytes_per_s: PositiveFloat | None = None
    achieved_bytes_per_s: PositiveFloat | None
    mfu_frac: PositiveFloat | None
    """Decode: FLOP over time over the measured matrix-product peak of the type."""
    prefill_mfu_frac: PositiveFloat | None
    outside_kernels_frac: NonNegativeFloat | None
    cpu_wait_frac: NonNegativeFloat | None
    """Share of the requests' time that other processes or virtual machines kept our threads from their cores."""
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

    schema_version: Literal[2] = SCHEMA_VERSION
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
