"""The requests of a run: what its configuration asks for, as prompts that no other request of the run has."""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.engines.base import Engine
from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.specs.request import Request
from harness.specs.run import RunConfig, Workload


@dataclass(frozen=True)
class Point:
    """One workload of a run: the run's own, or that of one value of its sweep."""

    input_tokens: int | None
    """Null: the run's prompts are texts."""
    batch: int = 1
    skip_prompt: bool = False


def points(config: RunConfig) -> list[Point]:
    """The workloads that a run measures."""
    sweep, own = config.sweep, Point(config.workload.input_tokens)
    if sweep is None:
        return [own]
    if sweep.over == "batch":
        return [Point(own.input_tokens, batch) for batch in sweep.values]
    return [Point(length, skip_prompt=sweep.over == "context") for length in sweep.values]


def schedule(config: RunConfig) -> list[Point]:
    """Of each request, in order. The values of a sweep take turns in random order: what changes on the machine
    meanwhile does not fall on one of them."""
    order: list[Point] = []
    for round_ in range(config.workload.repeats):
        turn = points(config)
        random.Random(f"{config.workload.seed}/order/{round_}").shuffle(turn)
        order += turn
    return order


def make_request(work: Workload, model: ResolvedModel, repeat: int, point: Point, engine: Engine) -> Request:
    """The request of a repeat: its text in turn, or token ids that no other repeat has."""
    ignore_eos = work.mode == "fixed-length"
    if point.input_tokens is None:
        texts = work.prompts or ()
        return Request(texts[repeat % len(texts)], None, work.output_tokens, ignore_eos)
    ids = _ids(work, model, point.input_tokens, str(repeat), point.batch)
    return Request(None, ids, work.output_tokens, ignore_eos, point.skip_prompt and engine.can_skip_prompt)


def warmup_request(
    work: Workload, model: ResolvedModel, num_tokens: int, batch: int, skip_prompt: bool, takes_ids: bool = True
) -> Request:  # fmt: skip
    """As long as a repeat's prompts, and none of them. A server that takes no ids gets the longest text backwards, word
    by word: about as long."""
    if not takes_ids:
        words = max(work.prompts or ("",), key=len).split()
        return Request(" ".join(["Warm-up.", *words[::-1]]), None, work.warmup_tokens, True)
    ids = _ids(work, model, num_tokens, "warm-up", batch)
    return Request(None, ids, work.warmup_tokens, True, skip_prompt)


def _ids(work: Workload, model: ResolvedModel, num_tokens: int, name: str, batch: int) -> tuple[tuple[int, ...], ...]:
    """Token ids drawn uniformly from the whole vocabulary, for each prompt of the batch."""
    draw = random.Random(f"{work.seed}/{name}")
    return tuple(tuple(draw.randrange(model.spec.vocab_size) for _ in range(num_tokens)) for _ in range(batch))


def check_fits(num_prompt_tokens: int, output_tokens: int, model: ResolvedModel) -> None:
    """Raises ConfigError for a prompt without tokens, and for positions that the model has not."""
    if num_prompt_tokens < 1:
        raise ConfigError("workload.prompts: a prompt has no tokens", "write a text of at least one token")
    limit = model.spec.max_position_embeddings
    if num_prompt_tokens + output_tokens > limit:
        raise ConfigError(
            f"{num_prompt_tokens} prompt and {output_tokens} output tokens pass the model's {limit} positions",
            "lower workload.output_tokens, or shorten the prompt",
        )
