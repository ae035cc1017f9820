"""The figures of a run: those of each repeat, the row that they come down to, and the verdict on it."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from harness.roofline import Wall
from harness.specs.base import Frozen

TokenSource = Literal["ids", "running usage", "usage", "chunks"]
"""What a number of tokens rests on: their ids; totals that a server sends with each chunk; its total at the end, over
all chunks; the number of chunks."""


class OfficialFigures(Frozen):
    """One request as `vllm bench serve` counts it: from before the connection is opened, to the first and the last part
    of the answer, with a token in it or not; tokens by the server's usage."""

    ttft_s: PositiveFloat
    tpot_s: NonNegativeFloat | None
    """(latency - TTFT) / (tokens - 1); null for fewer than two tokens, and without a usage."""
    latency_s: PositiveFloat


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
    token_source: TokenSource = "ids"
    num_chunks: NonNegativeInt | None = None
    """Chunks that carried tokens; null in records of before they were counted."""
    most_tokens_a_chunk: NonNegativeInt | None = None
    usage_prompt_tokens: NonNegativeInt | None = None
    usage_output_tokens: NonNegativeInt | None = None
    """As the server says; null where it says nothing."""
    cached_tokens: NonNegativeInt | None = None
    finish_reason: str | None = None
    connect_s: NonNegativeFloat | None = None
    official: OfficialFigures | None = None
    """Of a request to a server."""


class FailedRequest(Frozen):
    """A request that came to nothing."""

    repeat: NonNegativeInt
    reason: str


PrefillVerdictName = Literal["underfed", "approaching", "at-wall", "invalid", "unstable", "no-peak"]
VerdictName = Literal["underfed", "approaching", "at-wall", "invalid", "unstable", "no-roof"]


class Verdict(Frozen):
    """The judgement of a decode and what it rests on."""

    verdict: VerdictName
    reason: str
    """Why this verdict, in one sentence with its figures."""
    cause: str
    """What keeps the decode from the wall, by evidence; `unknown` where there is none."""
    next_step: str


class PromptChunk(Frozen):
    """Positions begin <= i < end of a prompt, taken in together."""

    begin: NonNegativeInt
    end: PositiveInt
    linear_flop: PositiveInt
    """Products with weights; the last chunk's has the output head."""
    attention_flop: NonNegativeInt
    """Each position with all that it sees, those of earlier chunks too."""
    state_flop: NonNegativeInt
    """Recurrent and convolution state."""
    weight_bytes: PositiveInt
    """What the chunk's tokens read of the weights."""


class TimeShare(Frozen):
    """A part of a whole request's time."""

    part: str
    """Phase and kind of work: decode linear, prefill attention, ..."""
    time_frac: NonNegativeFloat
    by: Literal["clock", "FLOP"]
    """clock: timed, in the instrumented pass or as a whole; FLOP: a phase's time shared out by arithmetic."""


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
    """Sum of the decode steps' floors over the sum of their measured times. A floor is the higher of the two walls."""
    bound: Wall | None = None
    """Which wall that is; null where the peak of products is not known."""
    util_interval_frac: tuple[float, float] | None
    """95 per cent over repeats; of a single one the roof's uncertainty. util_interval_method says which."""
    util_interval_method: str | None

    ttft_s: PositiveFloat | None
    """Median over repeats; request sent to first token, client side, tokenization included."""
    tpot_s: PositiveFloat | None
    """Median over repeats."""
    official_ttft_s: PositiveFloat | None = None
    """Median over repeats, as `vllm bench serve` counts it; null where no server answered."""
    official_tpot_s: PositiveFloat | None = None
    official_itl_s: NonNegativeFloat | None = None
    """Median gap between parts of the answer, one that only says who speaks included, all repeats pooled."""
    official_itl_p99_s: NonNegativeFloat | None = None
    official_throughput_tokens_per_s: PositiveFloat | None = None
    """Tokens by the server's usage over the latencies of all repeats, as that tool has it of requests one behind
    another; null where a usage is missing."""
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

    prefill_verdict: PrefillVerdictName | None = None
    """Null where no prompt was computed."""
    prefill_reason: str | None = None
    prefill_linear_flop: PositiveInt | None = None
    prefill_attention_flop: NonNegativeInt | None = None
    """The part that grows with the square of the prompt."""
    prefill_state_flop: NonNegativeInt | None = None
    prefill_chunks: tuple[PromptChunk, ...] = ()
    """Of one prompt, as the engine takes it in."""
    prefill_floor_s: PositiveFloat | None = None
    """Sum over chunks of the higher of the two walls: FLOP over peak, weights over roof."""
    prefill_bound: Wall | None = None
    """The wall that most of it stands at."""
    prefill_util_frac: PositiveFloat | None = None
    """prefill_floor_s over TTFT, the mean over repeats."""
    prefill_util_interval_frac: tuple[float, float] | None = None
    """95 per cent, Student's t over repeats; null for one."""
    prefill_mfu_frac: PositiveFloat | None
    prefill_achieved_bytes_per_s: PositiveFloat | None = None
    """Weights once a chunk, over TTFT."""

    time_shares: tuple[TimeShare, ...] = ()
    """Of the whole request, the largest first: what to work on first and second."""
    outside_kernels_frac: NonNegativeFloat | None
    cpu_wait_frac: NonNegativeFloat | None
    """Share of the requests' time that other processes or virtual machines kept our threads from their cores; of the
    readings' time where a server answers, whose threads are others too."""
    timeline_gaps_s: NonNegativeFloat | None

    failed_requests: tuple[FailedRequest, ...] = ()
    """They are in no figure."""
    warnings: tuple[str, ...] = ()
