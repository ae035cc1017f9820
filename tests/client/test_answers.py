"""What a server's events say, and how many tokens they carry."""

import json
from typing import Any

import pytest

from harness.client.answers import AnswerReader
from harness.client.sse import ServerEvent
from harness.errors import RequestFailed
from harness.specs.event import Usage
from harness.specs.request import Chunk


def read(*bodies: dict[str, Any] | str) -> list[Chunk]:
    reader = AnswerReader(100)
    texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    return [chunk for i, text in enumerate(texts) for chunk in reader.chunks(ServerEvent(float(i), text))]


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def text(of: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": of} | more]}


def test_who_speaks_is_part_of_the_answer_and_no_token() -> None:
    role, empty, first = read(delta(role="assistant"), delta(content=""), delta(content="a"))
    assert (role.num_tokens, empty.num_tokens, first.num_tokens) == (0, 0, None)
    assert role.has_choice and role.time_s == 0.0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_made_of_tokens_too(name: str) -> None:
    chunk = read(delta(content=None, **{name: "hm"}))[0]
    assert (chunk.text, chunk.num_tokens) == ("hm", None)


def test_the_usage_behind_the_answer_is_beside_it() -> None:
    body = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": None}}
    chunk = read(text("a"), body)[1]
    assert not chunk.has_choice and chunk.num_tokens == 0
    assert chunk.usage == Usage(prompt_tokens=7, output_tokens=3)


def test_cached_tokens_are_told() -> None:
    details = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read({"choices": [], "usage": details})[0].usage == Usage(prompt_tokens=7, output_tokens=3, cached_tokens=4)


def test_ids_count_even_where_they_make_no_text_yet() -> None:
    half, whole = read(text("", token_ids=[5]), text("é!", token_ids=[6, 7]))
    assert (half.token_ids, whole.token_ids) == ((5,), (6, 7))
    assert (half.num_tokens, whole.num_tokens) == (1, 2)


def test_running_usage_counts_what_has_no_ids() -> None:
    def running(total: int) -> dict[str, Any]:
        return {"prompt_tokens": 2, "completion_tokens": total}

    bodies = [text("a") | {"usage": running(1)}, text("") | {"usage": running(3)}, text("b") | {"usage": running(4)}]
    assert [chunk.num_tokens for chunk in read(*bodies)] == [1, 2, 1]


def test_done_is_no_chunk() -> None:
    reader = AnswerReader(100)
    assert not list(reader.chunks(ServerEvent(0.0, "[DONE]"))) and reader.is_done


@pytest.mark.parametrize(
    "body, what",
    [
        ("{", "no answer: Invalid JSON"),
        ("[1]", "no answer: Input should be an object"),
        ({"choices": ["a"]}, r"no answer: choices\.0: Input should be"),
        ({"choices": [{"delta": "a"}]}, r"choices\.0\.delta"),
        ({"choices": [{"text": 5}]}, r"choices\.0\.text"),
        ({"choices": [{"token_ids": ["x"]}]}, r"choices\.0\.token_ids\.0"),
        ({"choices": [], "usage": 3}, "no answer: usage"),
        ({"error": {"message": "out of\nmemory", "code": 500}}, "error within the stream: out of memory"),
        ({"error": "busy"}, "error within the stream: busy"),
        ({"object": "error", "message": "engine died"}, "error within the stream: engine died"),
        ({"choices": [{"text": "a", "finish_reason": "abort"}]}, "broke the answer off: finish_reason 'abort'"),
        ({"choices": [{"token_ids": [*range(101)]}]}, "does not end: 101 tokens"),
        ({"choices": [], "usage": {"completion_tokens": 101}}, "does not end: 101 tokens"),
        ({"choices": [], "usage": {"completion_tokens": 10**400}}, r"no answer: usage\.completion_tokens"),
        ({"choices": [], "usage": {"prompt_tokens": 10**30}}, r"no answer: usage\.prompt_tokens"),
        (
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": -1}},
            r"no answer: usage\.completion_tokens",
        ),
    ],
)
def test_what_is_no_answer(body: dict[str, Any] | str, what: str) -> None:
    with pytest.raises(RequestFailed, match=what):
        read(body)
