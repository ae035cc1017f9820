"""A sweep: one run over several values of one thing, their requests interleaved in random order."""

import re
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from harness.errors import ConfigError
from harness.specs.base import Count, Frozen

MAX_VALUES = 64
SweepKey = Literal["input_tokens", "context", "batch"]


class Sweep(Frozen):
    """What a run goes over; workload.repeats is how often each value is measured."""

    over: SweepKey
    """input_tokens: lengths of prompts, for the time to the first token. context: positions that decoding starts
    behind, not computed where the engine can do without, for the split of a step's time. batch: prompts that are
    decoded together."""
    values: Annotated[tuple[Count, ...], Field(min_length=2, max_length=MAX_VALUES)]

    @model_validator(mode="after")
    def _each_once(self) -> "Sweep":
        if len(set(self.values)) < len(self.values):
            raise ValueError("a value stands twice")
        return self


def parse_sweep(text: str) -> Sweep:
    """`context=512,1024,4096`, or `batch=1..64` for doublings from 1 to 64. Raises ConfigError."""
    mend = "write for example context=512,1024,4096, or batch=1..64 for doublings"
    key, _, values = text.partition("=")
    keys = get_args(SweepKey)
    if key not in keys:
        raise ConfigError(f"--sweep {text}: it goes over {', '.join(keys)}", mend)
    span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", values)
    if span is None and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", values):
        raise ConfigError(f"--sweep {text}: {values!r} are no whole numbers", mend)
    numbers = _doublings(int(span[1]), int(span[2])) if span else [int(value) for value in values.split(",")]
    if len(set(numbers)) < max(2, len(numbers)) or min(numbers) < 1:
        raise ConfigError(f"--sweep {text}: two values or more, above 0, each once", mend)
    if len(numbers) > MAX_VALUES:
        raise ConfigError(f"--sweep {text[:40]}...: {len(numbers)} values, at most {MAX_VALUES}", mend)
    return Sweep.model_validate({"over": key, "values": numbers})


def as_override(sweep: Sweep) -> str:
    """As `--set` takes it."""
    return f"sweep={sweep.model_dump_json()}"


def _doublings(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first, ... and last."""
    values = []
    while 0 < first < last:
        values.append(first)
        first *= 2
    return [*values, last]
