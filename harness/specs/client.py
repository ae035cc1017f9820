"""How a server is asked, whoever runs it."""

from typing import Literal

from pydantic import JsonValue

from harness.specs.base import Frozen, Magnitude


class ClientOptions(Frozen):
    """Which of OpenAI's interfaces, what goes into a request, and how long an answer may take."""

    api: Literal["completions", "chat"] = "completions"
    """chat takes texts alone, and its server puts them into its template."""
    extensions: Literal["vllm", "none"] = "vllm"
    """vllm: ignore_eos, min_tokens, return_token_ids and running usage are asked for. Without them a fixed length can't
    be asked for, and a chunk's tokens are not told."""
    extra_body: dict[str, JsonValue] = {}
    """Goes into every request: sampling, chat_template_kwargs, ..."""
    connect_limit_s: Magnitude = 10.0
    first_token_limit_s: Magnitude = 600.0
    token_limit_s: Magnitude = 60.0
    """Between one token and the next."""
