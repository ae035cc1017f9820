"""What an engine is: takes one request, yields its tokens as they come, each with the time it arrived.

`bench` knows only this protocol, so a server across HTTP, vLLM in this process, our own decoder and a scripted one
are measured by the same code. Times are of the engine's own monotonic clock (`clock_s`): a scripted engine's runs as
fast as the test does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from harness.probe.base import Probe
from harness.specs.device import DeviceInfo
from harness.specs.record import EngineReport, Evidence
from harness.specs.run import RunConfig


@dataclass(frozen=True)
class Request:
    """One prompt and how long its answer may be."""

    prompt: str | None
    """Text, tokenized by the engine inside the timed region; exactly one of prompt and prompt_ids is given."""
    prompt_ids: tuple[int, ...] | None
    max_output_tokens: int
    ignore_eos: bool
    """Fixed length: exactly max_output_tokens come, whatever the model says."""


@dataclass(frozen=True)
class Chunk:
    """Tokens that arrived together. An engine in this process yields them one by one."""

    time_s: float
    token_ids: tuple[int, ...]
    text: str = ""


class Engine(Protocol):
    """A loaded model that answers one request at a time."""

    @property
    def device(self) -> DeviceInfo: ...

    def clock_s(self) -> float:
        """The monotonic clock that chunks are stamped with."""

    def num_prompt_tokens(self, request: Request) -> int: ...

    def generate(self, request: Request) -> Iterator[Chunk]: ...

    def explain(self, request: Request, num_steps: int) -> Evidence:
        """Where a decode step's time goes, from a separate, instrumented pass; what is not known is null."""

    def report(self) -> EngineReport:
        """What RAN: backend per layer and shape, bytes it reads, memory, preparation time."""

    def close(self) -> None: ...


class EngineKind(Protocol):
    """A registered kind of engine: how to open its probe, and then the engine itself.

    The probe comes first: its buffer is allocated before the engine takes the memory.
    """

    @staticmethod
    def open_probe(config: RunConfig) -> Probe | None:
        """None where this machine can't probe the memory that the engine reads from (a remote server)."""

    @staticmethod
    def open_engine(config: RunConfig) -> Engine: ...
