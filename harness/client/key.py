"""A server's key: read from the environment, sent, and written nowhere."""

from __future__ import annotations

import itertools
import json
import os

from harness.errors import ConfigError
from harness.specs.run import OpenAIEngine

MASK = "***"
SHORTEST_PART = 4
"""Of a key whose end was cut off: less of it tells nothing."""
CUT = ("", "'", '"')
"""What stands where a reason was cut: nothing, or the quote around it."""


class Key:
    """A secret that servers may repeat in their answers."""

    def __init__(self, value: str) -> None:
        self.value = value
        self._spellings = {value, json.dumps(value)[1:-1], repr(value)[1:-1]}

    @classmethod
    def of(cls, engine: OpenAIEngine) -> Key | None:
        """From the variable that the engine names. ConfigError where it should be there and is not, and for a value
        that no header can carry; the value is in no message."""
        if engine.api_key_env is None:
            return None
        name, value = engine.api_key_env, os.environ.get(engine.api_key_env)
        if not value:
            raise ConfigError(f"engine.api_key_env: {name} is not set", "export it, or leave the key out")
        if not (value.isascii() and value.isprintable()) or " " in value:
            what = f"engine.api_key_env: {name} holds a blank, a line's end or a character that no key has"
            raise ConfigError(what, "export it again; a file with Windows' line ends leaves a carriage return behind")
        return cls(value)

    def masked(self, text: str) -> str:
        """A text without the key, and without the beginning of it that a reason ends with which was cut there."""
        for spelling in self._spellings:
            text = text.replace(spelling, MASK)
            at = text.find(spelling[:SHORTEST_PART])
            while at >= 0:
                end = at + _shared(spelling, text[at:])
                if text[end : end + 1] in CUT:
                    text, end = text[:at] + MASK + text[end:], at + len(MASK)
                at = text.find(spelling[:SHORTEST_PART], end)
        return text


def _shared(one: str, other: str) -> int:
    """Characters that both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
