"""How many tokens an answer has, by what its server tells."""

import pytest

from harness.repeats import Repeat
from harness.specs.event import ChunkEvent, SendEvent, Usage


def repeat(*chunks: ChunkEvent) -> Repeat:
    made = Repeat(SendEvent(repeat=0, time_s=0.0, num_prompt_tokens=5))
    for chunk in chunks:
        made.add(chunk)
    return made


def chunk(time_s: float, *ids: int, **fields: object) -> ChunkEvent:
    return ChunkEvent.model_validate({"repeat": 0, "time_s": time_s, "token_ids": ids} | fields)


def total(output_tokens: int) -> ChunkEvent:
    return chunk(9.0, has_choice=False, num_tokens=0, usage=Usage(output_tokens=output_tokens))


def test_ids_are_counted() -> None:
    made = repeat(chunk(1.0, 4), chunk(2.0, 5, 6), total(3))
    assert (made.tokens_by_chunk, made.num_tokens, made.token_source) == ([1, 2], 3, "ids")
    assert made.decode_s == 1.0 and list(made.step_contexts()) == [6, 7]


def test_who_speaks_and_the_usage_move_neither_end() -> None:
    made = repeat(chunk(0.5, num_tokens=0), chunk(1.0, 4), chunk(3.0, 5), total(2))
    assert made.ttft_s == 1.0 and made.decode_s == 2.0
    assert made.choice_times_s == [0.5, 1.0, 3.0]


def test_running_totals_are_counted() -> None:
    made = repeat(chunk(1.0, text="a", num_tokens=2), chunk(2.0, text="b", num_tokens=1))
    assert (made.tokens_by_chunk, made.token_source) == ([2, 1], "running usage")


@pytest.mark.parametrize("tokens, spread", [(3, [1, 1, 1]), (7, [3, 2, 2]), (2, [1, 1, 0])])
def test_a_total_is_spread_over_the_chunks_that_do_not_tell(tokens: int, spread: list[int]) -> None:
    made = repeat(*[chunk(float(i), text="a") for i in range(3)], total(tokens))
    assert (made.tokens_by_chunk, made.num_tokens, made.token_source) == (spread, tokens, "usage")


def test_without_any_total_a_chunk_is_taken_for_a_token() -> None:
    made = repeat(chunk(1.0, text="a"), chunk(2.0, text="b"))
    assert (made.num_tokens, made.token_source) == (2, "chunks")


@pytest.mark.parametrize(
    "chunks, held",
    [
        ([(1.0, 1), (2.0, 1), (3.0, 1)], 0),
        ([(1.0, 2), (2.0, 1), (3.0, 1)], 1),  # two in the first chunk
        ([(1.0, 1), (1.01, 1), (2.0, 1), (3.0, 1)], 1),  # 0.01 s behind the first, where a token takes 0.67 s
        ([(1.0, 1), (1.07, 1), (2.0, 1), (3.0, 1)], 0),
        ([(1.0, 1), (2.0, 1), (3.0, 3)], 0),  # held back behind the first, they make no time shorter
        ([(1.0, 4)], 3),
        ([(1.0, 1)], 0),
        ([], 0),
    ],
)
def test_tokens_that_came_with_the_first(chunks: list[tuple[float, int]], held: int) -> None:
    assert repeat(*[chunk(time_s, *range(count)) for time_s, count in chunks]).num_held_tokens == held


def test_a_step_of_a_batch_holds_nothing_back() -> None:
    made = Repeat(SendEvent(repeat=0, time_s=0.0, num_prompt_tokens=5, batch=2))
    for time_s in (1.0, 2.0, 3.0):
        made.add(chunk(time_s, 4, 5))
    assert made.num_held_tokens == 0
