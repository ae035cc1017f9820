"""A plan: what a decode costs on a device, as far as shapes and figures say it. Null where not known."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from harness.roofline import Wall
from harness.specs.analysis import VerdictName
from harness.specs.base import Frozen
from harness.specs.sweep_report import Split, TtftFit

Bits = Literal[4, 8]


class Scenario(Frozen):
    """What a decode is planned for."""

    context: PositiveInt = 1024
    """Positions that each request's query attends to, its own included."""
    batch: PositiveInt = 1
    """Requests in one step, all at this context."""
    input_tokens: PositiveInt | None = None
    """Length of the prompt whose first token is planned; null: the context."""
    tensor_parallel: PositiveInt = 1
    """Devices that share every layer."""
    weight_bits: Bits | None = None
    """Every matrix at so many bits, scales not counted, arithmetic in the model's type; null: as they are."""
    kv_bits: Bits | None = None
    """The same for keys and values; null: as wide as the model's type."""

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens or self.context


class Walls(Frozen):
    """What a step is held against: a device's published figures, or what a run measured."""

    device: str
    roof_read_bytes_per_s: PositiveFloat
    roof_source: str
    roof_unverified: bool
    """No card of ours has confirmed the figure."""
    peak_flop_per_s: PositiveFloat | None
    """Dense matrix products of the model's type."""
    peak_source: str | None
    memory_bytes: PositiveInt | None
    link_bytes_per_s: PositiveFloat | None
    """What one device sends to its peers."""
    link_source: str | None


class WhatIf(Frozen):
    """The same plan with one thing changed."""

    what: str
    changed: str
    """The key of the plan that is another one."""
    value: PositiveInt | PositiveFloat
    floor_s: PositiveFloat
    bound: Wall | None
    floor_ratio: PositiveFloat
    """Over the plan's own floor_s: below 1 is faster."""
    floor_tokens_per_s: PositiveFloat
    """Of all requests of the step together."""
    collectives_floor_s: PositiveFloat | None
    fits_in_memory: bool | None
    predicted_tpot_s: PositiveFloat | None


class Calibration(Frozen):
    """What a run reached of its own walls, and how it was judged."""

    run_id: str
    verdict: VerdictName | None
    """Null for a sweep: each of its values has its own."""
    util_frac: PositiveFloat
    """Of the memory wall, over the run's decode steps; of a sweep the median of its values', over batches that of the
    smallest."""
    decode_mfu_frac: PositiveFloat | None
    """Of the compute wall, over the decode steps of a sweep's largest batch, where those had left the memory wall."""
    split: Split | None
    """Of a sweep: linear and attention path apart. Predictions for other contexts then rest on it."""
    prefill_mfu_frac: PositiveFloat | None
    """Of the compute wall, over the run's prompts."""
    ttft_fit: TtftFit | None
    """Of a sweep over prompts: predictions for whole models rest on it."""


class Plan(Frozen):
    """One self-describing row; the same byte keys as a run's analysis.

    Bytes are the whole model's; those of one device of several start with rank_. Activations are in no figure.
    """

    model: str
    device: str
    context: PositiveInt
    batch: PositiveInt
    input_tokens: PositiveInt
    tensor_parallel: PositiveInt
    weight_bits: Bits | None
    kv_bits: Bits | None
    precision: str

    floor_s: PositiveFloat
    """Least time of a step, so of TPOT: the larger of the two walls. What ranks say to each other is not in it."""
    bound: Wall | None
    """Which wall; null where the peak is not known and the memory's stands alone."""
    floor_tokens_per_s: PositiveFloat
    """Of all requests of the step together."""
    memory_floor_s: PositiveFloat
    compute_floor_s: PositiveFloat | None
    collectives_floor_s: PositiveFloat | None
    """Two ring all-reduces a layer, latency not counted; comes on top of floor_s as far as it does not overlap."""
    ttft_floor_s: PositiveFloat | None
    """Least time of the prompt, alone: its FLOP over the peak, or the weights once over the roof."""
    ttft_bound: Wall | None
    ridge_flop_per_byte: PositiveFloat | None
    step_flop_per_byte: PositiveFloat
    """Of a rank; memory-bound to the left of the ridge."""

    tensors_source: Literal["headers", "config"]
    weight_read_bytes: PositiveInt
    """Of a step of one request."""
    step_weight_bytes: PositiveInt
    """Of a step of the batch: more only where requests choose experts."""
    experts_assumption: Literal["uniform routing"] | None
    embedding_row_bytes: PositiveInt
    kv_bytes_per_context_token: NonNegativeInt
    state_read_bytes: NonNegativeInt
    state_write_bytes: NonNegativeInt
    step_bytes: PositiveInt
    step_flop: PositiveInt
    resident_weight_bytes: PositiveInt
    kv_cache_bytes: NonNegativeInt
    """Of the whole context of every request, as far as it is seen."""
    rank_weight_read_bytes: PositiveInt
    rank_kv_bytes_per_context_token: NonNegativeInt
    """More than its share where there are fewer key heads than ranks: they are kept several times."""
    rank_step_bytes: PositiveInt
    rank_resident_weight_bytes: PositiveInt

    fits_in_memory: bool | None
    """A rank's weights, cache and state within the device's memory; null where that is not known."""
    largest_batch_in_memory: NonNegativeInt | None
    """At this context; 0: not even one request. Null where memory is not known or a request keeps nothing."""
    largest_batch_memory_bound: PositiveInt | None
    """At this context: the largest whose compute floor does not pass its memory floor."""
    largest_batch_memory_bound_reason: str | None
    """Why there is none."""

    roof_read_bytes_per_s: PositiveFloat
    roof_source: str
    roof_unverified: bool
    peak_flop_per_s: PositiveFloat | None
    peak_source: str | None
    link_bytes_per_s: PositiveFloat | None
    link_source: str | None

    calibration: Calibration | None
    """The run that the walls and the predictions are from; null for a device's published figures."""
    predicted_tpot_s: PositiveFloat | None
    """At the run's own utilization."""
    predicted_ttft_s: PositiveFloat | None

    what_ifs: tuple[WhatIf, ...]
