"""How a server is asked, whoever runs it."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from harness.specs.base import Frozen, Magnitude
from harness.specs.environment import is_secret_field

Limit = Annotated[Magnitude, Field(le=1e6)]
"""Seconds; a socket waits no longer than its system counts."""


class ClientOptions(Frozen):
    """Which of OpenAI's interfaces, what goes into a request, and how long an answer may take."""

    api: Literal["completions", "chat"] = "completions"
    """chat takes texts alone, and its server puts them into its template."""
    extensions: Literal["vllm", "none"] = "vllm"
    """vllm: ignore_eos, min_tokens, return_token_ids and running usage are asked for. Without them a fixed length can't
    be asked for, and a chunk's tokens are not told."""
    extra_body: dict[str, JsonValue] = {}
    """Goes into every request: sampling, chat_template_kwargs, ..."""
    connect_limit_s: Limit = 10.0
    first_token_limit_s: Limit = 600.0
    token_limit_s: Limit = 60.0
    """Between one token and the next."""

    @field_validator("extra_body")
    @classmethod
    def _holds_no_secret(cls, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """A run's configuration is kept in its record."""
        secret = [name for name in body if is_secret_field(name)]
        if secret:
            raise ValueError(f"{secret[0]} may be a secret, and the record keeps this file: name its variable")
        return body
