"""What a server's events say: OpenAI's completions and chat completions, streamed, with what vLLM adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from harness.client.connection import error_text
from harness.client.sse import ServerEvent
from harness.errors import RequestFailed
from harness.specs.event import Usage
from harness.specs.request import Chunk

DONE = "[DONE]"
BROKEN_OFF = ("error", "abort", "aborted", "cancelled", "content_filter")
"""What a server says of an answer that it ended itself, whatever the model was about to say."""

_Count = Annotated[int, Field(ge=0, le=1 << 53)]


class _Delta(BaseModel):
    """A chat's part of an answer; reasoning has two names in the field."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(BaseModel):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def written(self) -> str:
        """Completions' text, chat's reasoning and content: all of them are tokens that the model made."""
        delta = self.delta or _Delta()
        return "".join(filter(None, (self.text, delta.reasoning_content or delta.reasoning, delta.content)))


class _PromptDetails(BaseModel):
    cached_tokens: _Count | None = None


class _Usage(BaseModel):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def kept(self) -> Usage:
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        return Usage(
            prompt_tokens=self.prompt_tokens or None, output_tokens=self.completion_tokens, cached_tokens=cached
        )


class _Event(BaseModel):
    """The fields that mean anything here; servers send many more."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None


class AnswerReader:
    """Events to chunks. A server may send ids with each chunk, or running totals, or neither: num_tokens says so."""

    def __init__(self, most_tokens: int) -> None:
        """most_tokens: of an answer that has an end."""
        self.is_done = False
        self._most_tokens, self._num_arrived = most_tokens, 0
        self._running_total = 0
        self._counts_as_it_goes = False

    def chunks(self, event: ServerEvent) -> Iterator[Chunk]:
        """The chunk of one event; none of the last. Raises RequestFailed for an event that is an error or no answer."""
        if event.data == DONE:
            self.is_done = True
            return
        body = _parsed(event.data)
        choice = body.choices[0] if body.choices else None
        written, ids = (choice.written, choice.token_ids or []) if choice else ("", [])
        self._check_end(choice, len(ids) or bool(written), body.usage)
        yield Chunk(
            time_s=event.time_s, token_ids=tuple(ids), text=written,
            num_tokens=len(ids) if choice is None else self._num_tokens(len(ids), written, body.usage),
            has_choice=choice is not None, usage=body.usage.kept if body.usage else None,
            finish_reason=choice.finish_reason if choice else None,
        )  # fmt: skip

    def _check_end(self, choice: _Choice | None, num_new: int, usage: _Usage | None) -> None:
        self._num_arrived += num_new
        told = usage.completion_tokens if usage else 0
        if max(self._num_arrived, told) > self._most_tokens:
            raise RequestFailed(f"the answer does not end: {max(self._num_arrived, told):,} tokens")
        if choice is not None and choice.finish_reason in BROKEN_OFF:
            raise RequestFailed(f"the server broke the answer off: finish_reason {choice.finish_reason!r}")

    def _num_tokens(self, num_ids: int, written: str, usage: _Usage | None) -> int | None:
        """Null where text came and nothing tells how many tokens made it."""
        if usage is not None:  # vLLM's continuous_usage_stats
            self._counts_as_it_goes = True
            new, self._running_total = usage.completion_tokens - self._running_total, usage.completion_tokens
            return num_ids or max(0, new)
        if num_ids or not written:
            return num_ids
        return 0 if self._counts_as_it_goes else None


def _parsed(data: str) -> _Event:
    try:
        body = _Event.model_validate_json(data)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(map(str, first["loc"]))
        where = f"{place}: {first['msg']}" if place else first["msg"]
        raise RequestFailed(f"an event of the stream is no answer: {where}: {data[:60]!r}") from None
    if body.error or body.object == "error":
        raise RequestFailed(f"the server reports an error within the stream: {error_text(data.encode())}")
    return body
