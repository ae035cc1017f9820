"""What goes over the wire, and the questions beside it: which models a server has, how many tokens a text is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.client.answers import AnswerReader
from harness.client.connection import Exchange, clock_s
from harness.client.key import Key
from harness.client.server_url import ServerUrl
from harness.client.sse import EventDecoder
from harness.errors import ConfigError, RequestFailed, UnavailableError
from harness.specs.request import Chunk, Request
from harness.specs.run import OpenAIEngine

Json = dict[str, Any]

ENDLESS, ENDLESS_SHORT = 2, 64
"""An answer of more than so many times the tokens that were asked for, and a few for short ones, is not read on."""


def request_body(engine: OpenAIEngine, served_model: str, request: Request) -> bytes:
    """The streamed, greedy request. extra_body comes last: what the user says stands."""
    body: Json = {
        "model": served_model, "max_tokens": request.max_output_tokens, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    if engine.api == "chat":
        body["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        body["prompt"] = request.prompt if request.prompts_ids is None else list(request.prompts_ids[0])
    if engine.extensions == "vllm":
        body["stream_options"]["continuous_usage_stats"] = True
        body["return_token_ids"] = True
        if request.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": request.max_output_tokens}
    return json.dumps(body | engine.extra_body).encode()


def tokenize_body(engine: OpenAIEngine, served_model: str, request: Request) -> Json:
    """The question of vLLM's /tokenize for the same prompt."""
    if engine.api == "completions":
        return {"model": served_model, "prompt": request.prompt}
    body: Json = {"model": served_model, "messages": [{"role": "user", "content": request.prompt}]}
    return body | {key: value for key, value in engine.extra_body.items() if key == "chat_template_kwargs"}


class Client:
    """One server, and how it is spoken to."""

    def __init__(self, engine: OpenAIEngine) -> None:
        self._engine, self._key = engine, Key.of(engine)
        self.url = ServerUrl.parse(engine.url)
        self._path = "/chat/completions" if engine.api == "chat" else "/completions"

    def ask(
        self, path: str, body: Json | None = None, at_root: bool = False, limit_s: float | None = None
    ) -> Json:  # fmt: skip
        """A question's answer as JSON. RequestFailed for what is none. at_root: beside /v1, where vLLM's own are.
        limit_s: of the answer; null: what is allowed for a connection."""
        url = self._root if at_root else self.url
        limit_s = limit_s or self._engine.connect_limit_s
        with Exchange(url, limit_s) as exchange:
            exchange.wait_until(clock_s() + limit_s)
            method = "GET" if body is None else "POST"
            exchange.send(method, path, self._headers(), None if body is None else json.dumps(body).encode())
            data = b"".join(portion for portion, _ in exchange.portions())
        with suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(data), dict):
                return found
        raise RequestFailed(f"{url}{path} answers no JSON object: {data[:60]!r}", "is it an OpenAI-compatible server?")

    def check_health(self) -> None:
        """RequestFailed while the server is not ready for requests."""
        with Exchange(self._root, self._engine.connect_limit_s) as exchange:
            exchange.wait_until(clock_s() + self._engine.connect_limit_s)
            exchange.send("GET", "/health", self._headers())
            exchange.open_answer()

    @property
    def _root(self) -> ServerUrl:
        return ServerUrl(self.url.scheme, self.url.host, self.url.port, self.url.path.removesuffix("/v1"))

    def connect(self) -> Exchange:
        """For one request."""
        return Exchange(self.url, self._engine.connect_limit_s)

    def send(self, exchange: Exchange, body: bytes) -> None:
        exchange.send("POST", self._path, self._headers(), body)

    def chunks(self, exchange: Exchange, asked_tokens: int) -> Iterator[Chunk]:
        """Of the request that was sent, as they come. Raises RequestFailed for all that is not a whole answer, and for
        one that does not end."""
        decoder, reader = EventDecoder(), AnswerReader(most_tokens=ENDLESS * asked_tokens + ENDLESS_SHORT)
        exchange.wait_until(clock_s() + self._engine.first_token_limit_s)
        for portion, time_s in exchange.portions():
            for event in decoder.feed(portion, time_s):
                for chunk in reader.chunks(event):
                    if chunk.token_ids or chunk.text:
                        exchange.wait_until(time_s + self._engine.token_limit_s)
                    yield chunk if self._key is None else replace(chunk, text=self._key.masked(chunk.text))
                if reader.is_done:
                    return
        raise RequestFailed(f"the stream ended {'within an event' if decoder.is_within_event else 'before its [DONE]'}")

    def _headers(self) -> Mapping[str, str]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        return headers if self._key is None else headers | {"Authorization": f"Bearer {self._key.value}"}

    def without_key(self, text: str) -> str:
        """For whatever is kept: some servers repeat the key in their refusal."""
        return text if self._key is None else self._key.masked(text)


def find_served_model(client: Client, wanted: str | None) -> Json:
    """The server's entry for the model. UnavailableError where nobody answers, ConfigError where it has another one."""
    try:
        data = client.ask("/models").get("data")
        entries = data if isinstance(data, list) else []
        listed = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    except RequestFailed as fault:
        what = client.without_key(f"the server at {client.url} does not list its models: {fault.what}")
        raise UnavailableError(what, fault.mend) from None
    names = [entry["id"] for entry in listed]
    found = [entry for entry in listed if wanted in (None, entry["id"])]
    if len(found) == 1:
        return found[0]
    has = ", ".join(names[:8]) or "none"
    if wanted is None:
        raise ConfigError(
            f"the server at {client.url} has {len(names)} models: {has}", "name one in engine.served_model"
        )
    raise ConfigError(f"the server at {client.url} has no model {wanted!r}", f"it has: {has}")
