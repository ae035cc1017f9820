"""Text in and out of engines in this process: the model's tokenizer, where its folder has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError, UnavailableError
from harness.specs.request import Request
from harness.specs.run import RunConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(folder: Path | None) -> Tokenizer | None:
    """None where the folder has no tokenizer.json; prompts are then token ids."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnavailableError("the package tokenizers is not installed", "pip install tokenizers") from None
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as fault:  # the library raises nothing narrower
        raise ConfigError(f"{folder / 'tokenizer.json'}: {fault}", "download the file again") from fault


def encoded(text: str, tokenizer: Tokenizer | None, model: str) -> tuple[int, ...]:
    """Token ids of a prompt, without special tokens. ConfigError where the model has no tokenizer."""
    if tokenizer is None:
        raise ConfigError(
            f"{model} has no tokenizer.json, so a text can't be its prompt",
            "set workload.input_tokens instead of workload.prompts",
        )
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def request_ids(request: Request, tokenizer: Tokenizer | None, model: str) -> tuple[tuple[int, ...], ...]:
    """Token ids of each prompt of a request."""
    if request.prompts_ids is not None:
        return request.prompts_ids
    return (encoded(request.prompt or "", tokenizer, model),)


def longest_prompt(config: RunConfig, tokenizer: Tokenizer | None) -> int:
    """Tokens of the run's longest prompt, whether it is given as text or as a length."""
    prompts = config.workload.prompts
    if prompts is None:
        return config.longest_prompt
    return max(len(encoded(text, tokenizer, config.model)) for text in prompts)


class TextStream:
    """Text as it comes: a token may complete a character that earlier ones began."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        if tokenizer is not None:
            from tokenizers.decoders import DecodeStream

            self._stream = DecodeStream(skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """What this token adds; empty without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return self._stream.step(self._tokenizer, token) or ""
