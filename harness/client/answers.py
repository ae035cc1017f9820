"""What a server's events say: OpenAI's completions and chat completions, streamed, with what vLLM adds to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from harness.client.connection import error_text
from harness.client.sse import ServerEvent
from harness.errors import RequestFailed
from harness.specs.event import Usage
from harness.specs.request import Chunk

Api = Literal["completions", "chat"]
DONE = "[DONE]"
Json = dict[str, Any]


class AnswerReader:
    """Events to chunks. A server may send ids with each chunk, or running totals, or neither: num_tokens says so."""

    def __init__(self) -> None:
        self.is_done = False
        self._running_total = 0
        self._counts_as_it_goes = False

    def chunks(self, event: ServerEvent) -> Iterator[Chunk]:
        """The chunk of one event; none of the last. Raises RequestFailed for an event that is an error or no answer."""
        if event.data == DONE:
            self.is_done = True
            return
        body = _object(event.data)
        choices = body.get("choices") or []
        choice = choices[0] if choices else {}
        ids = choice.get("token_ids") or []
        text, usage = _text(choice), _usage(body)
        yield Chunk(
            time_s=event.time_s, token_ids=tuple(ids), text=text,
            num_tokens=self._num_tokens(ids, text, usage, bool(choices)), has_choice=bool(choices),
            usage=usage, finish_reason=choice.get("finish_reason"),
        )  # fmt: skip

    def _num_tokens(self, ids: list[int], text: str, usage: Usage | None, has_choice: bool) -> int | None:
        """Null where text came and nothing tells how many tokens made it."""
        if usage is not None and has_choice:  # vLLM's continuous_usage_stats
            self._counts_as_it_goes = True
            new, self._running_total = usage.output_tokens - self._running_total, usage.output_tokens
            return len(ids) or new
        if ids or not text:
            return len(ids)
        return 0 if self._counts_as_it_goes else None


def _object(data: str) -> Json:
    try:
        body = json.loads(data)
    except ValueError:
        raise RequestFailed(f"an event of the stream is not JSON: {data[:60]!r}") from None
    if not isinstance(body, dict):
        raise RequestFailed(f"an event of the stream is no object: {data[:60]!r}")
    if body.get("error"):
        raise RequestFailed(f"the server reports an error within the stream: {error_text(data.encode())}")
    return body


def _text(choice: Json) -> str:
    """Completions' text, chat's content or its reasoning: all of them are tokens that the model made."""
    delta = choice.get("delta") or {}
    parts = (choice.get("text"), delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"))
    return "".join(part for part in parts if isinstance(part, str))


def _usage(body: Json) -> Usage | None:
    usage = body.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    try:
        return Usage(
            prompt_tokens=usage.get("prompt_tokens"), output_tokens=usage.get("completion_tokens", 0),
            cached_tokens=details.get("cached_tokens"),
        )  # fmt: skip
    except ValueError:
        raise RequestFailed(f"the server's usage can't be read: {json.dumps(usage)[:80]}") from None
