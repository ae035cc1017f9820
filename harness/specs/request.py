"""What an engine is asked for, and what arrives."""

from __future__ import annotations

from dataclasses import dataclass

from harness.specs.event import Usage


@dataclass(frozen=True)
class Request:
    """What is asked for: one prompt, or several of one length that are decoded together."""

    prompt: str | None
    """Text, tokenized by the engine inside the timed region; exactly one of prompt and prompts_ids is given."""
    prompts_ids: tuple[tuple[int, ...], ...] | None
    """Token ids of each prompt of the batch."""
    max_output_tokens: int
    """Of each prompt's answer."""
    ignore_eos: bool
    """Fixed length: exactly max_output_tokens come, whatever the model says."""
    skip_prompt: bool = False
    """Do not compute the prompt: its places hold random keys and values, since only the steps behind it are asked for.
    Engines that `can_skip_prompt` do so."""

    @property
    def batch(self) -> int:
        return 1 if self.prompts_ids is None else len(self.prompts_ids)


@dataclass(frozen=True)
class Chunk:
    """What arrived together. An engine in this process yields a step's tokens: one for each prompt of the batch."""

    time_s: float
    token_ids: tuple[int, ...]
    text: str = ""
    num_tokens: int | None = None
    """Of a chunk without ids: how many it carries; null where the server does not tell."""
    has_choice: bool = True
    """Else it is what a server sends beside the answer, such as the usage behind it."""
    usage: Usage | None = None
    finish_reason: str | None = None
