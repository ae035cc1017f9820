"""The record of `harness ab run`: two configurations of one engine on the same weights, request beside request."""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from harness.errors import ConfigError
from harness.specs.base import Count, Frozen, Magnitude, flattened
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport
from harness.specs.environment import Environment
from harness.specs.record import SCHEMA_VERSION, Failure, Status
from harness.specs.run import RunConfig

SideName = Literal["a", "b"]
NOT_THE_SAME_WORK = ("engine.kind", "engine.weights", "engine.seed", "engine.dtype", "engine.device", "engine.threads")
"""Other weights, another rounding or another machine: such runs are compared by `harness runs compare`."""


class Difference(Frozen):
    """The one key that tells both sides apart."""

    key: str
    a: Any
    b: Any


class AbRunConfig(Frozen):
    """One run of `harness ab run A B`."""

    a: RunConfig
    """The baseline; its workload is made for both."""
    b: RunConfig
    min_blocks: Count = 5
    """Rounds; in each both sides answer the same request, in turning order."""
    max_blocks: Count = 12
    precision: Magnitude = 0.02
    """Rounds end when the ratio of TPOT is known to about so much: half of its 95 per cent interval, in logarithms."""

    @model_validator(mode="after")
    def _enough(self) -> "AbRunConfig":
        if self.a.sweep is not None or self.b.sweep is not None:
            raise ConfigError("a sweep has several workloads, `ab run` takes one", "take `sweep:` out of both files")
        if self.a.workload.output_tokens < 2:
            raise ConfigError(
                "an answer of one token has no time between tokens", "set workload.output_tokens to 2 or more"
            )
        if not 2 <= self.min_blocks <= self.max_blocks:
            raise ValueError(f"{self.min_blocks} to {self.max_blocks} rounds: at least 2, and at most not below")
        return self

    def difference(self) -> Difference:
        """ConfigError where the configurations differ in nothing, in more than one key, or in more than how the same
        work is done."""
        a, b = (flattened(side.model_dump(mode="json", exclude={"name"})) for side in (self.a, self.b))
        keys = [key for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)]
        keys = [key for key in keys if key != "engine.selection_force"] or keys
        listed = "; ".join(f"{key}: {a.get(key)!r} and {b.get(key)!r}" for key in keys)
        if len(keys) != 1:
            what = f"in {len(keys)} keys: {listed}" if keys else "in nothing"
            raise ConfigError(f"the configurations differ {what}", "let them differ in the one key that is asked about")
        if not keys[0].startswith("engine.") or keys[0] in NOT_THE_SAME_WORK:
            raise ConfigError(
                f"the configurations do not do the same work: {listed}",
                "run each with `harness bench`, then `harness runs compare`",
            )
        return Difference(key=keys[0], a=a.get(keys[0]), b=b.get(keys[0]))


class AbRequestEvent(Frozen):
    """One answer of one side."""

    event: Literal["ab-request"] = "ab-request"
    block: NonNegativeInt
    side: SideName
    ttft_s: PositiveFloat
    """From the request's send to its first token."""
    tpot_s: PositiveFloat
    """(last token - first token) / (tokens - 1)."""
    num_tokens: PositiveInt


class SideFigures(Frozen):
    """Of one side, medians over its requests."""

    side: SideName
    ttft_s: PositiveFloat
    tpot_s: PositiveFloat
    engine: EngineReport


class Comparison(Frozen):
    """a's time over b's: above 1, b is faster. Geometric mean over rounds, Student's t over their log ratios."""

    figure: Literal["ttft_s", "tpot_s"]
    ratio: PositiveFloat
    interval: tuple[PositiveFloat, PositiveFloat]
    num_pairs: PositiveInt
    shows: Literal["b is faster", "b is slower", "no difference shown"]


class Agreement(Frozen):
    """Whether both sides say the same."""

    num_requests: PositiveInt
    num_same: NonNegativeInt
    """Requests whose answers have the same tokens."""
    first_difference: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """(round, position in the answer). Greedy answers in bf16 may part where two tokens are nearly as likely."""
    logits_max_difference: float | None = None
    """Largest difference of the logits behind the prompt, over all rounds; null where an engine does not show them."""
    logits_max: float | None = None
    """Largest logit beside it."""


class AbRunRecord(Frozen):
    """record.json of `harness ab run`."""

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["ab-run"] = "ab-run"
    run_id: str
    created_utc: str
    status: Status
    config: AbRunConfig
    difference: Difference
    environment: Environment
    device: DeviceInfo
    sides: tuple[SideFigures, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    agreement: Agreement | None = None
    failure: Failure | None = None
