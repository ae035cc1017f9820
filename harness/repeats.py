"""From events to finished requests: what arrived when, with the time of readings in between left out. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.errors import ConfigError
from harness.specs.analysis import TokenSource
from harness.specs.event import ChunkEvent, EndEvent, Event, FailEvent, PauseEvent, SendEvent, Usage
from harness.specs.probe import ProbeReading

TOGETHER_FRAC = 0.1
"""Of the mean time of a token: what comes closer than that behind another one was made before it."""


@dataclass
class Repeat:
    """One request as it was measured. Chunk times are those of a clock that stood still while the request paused."""

    send: SendEvent
    chunks: list[ChunkEvent] = field(default_factory=list)
    """Those that carry tokens."""
    choice_times_s: list[float] = field(default_factory=list)
    """When each part of the answer came, whether it carried a token or only said who speaks."""
    usage: Usage | None = None
    """The last that was said."""
    finish_reason: str | None = None
    pauses: list[tuple[int, ProbeReading]] = field(default_factory=list)
    """(decode steps before it, what was read meanwhile)."""
    paused_s: float = 0.0
    end: EndEvent | None = None

    def add(self, event: ChunkEvent | PauseEvent | EndEvent) -> None:
        """The next event of this request."""
        if isinstance(event, EndEvent):
            self.end = event
        elif isinstance(event, PauseEvent):
            self.pauses.append((self.num_decode_steps, event.reading))
            self.paused_s += event.resume_s - event.pause_s
        else:
            self._arrive(event.model_copy(update={"time_s": event.time_s - self.paused_s}))

    def _arrive(self, chunk: ChunkEvent) -> None:
        self.usage = chunk.usage or self.usage
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.has_choice:
            self.choice_times_s.append(chunk.time_s)
        if chunk.known_tokens != 0:
            self.chunks.append(chunk)

    @property
    def tokens_by_chunk(self) -> list[int]:
        """Where chunks don't tell, what the usage has beyond the others is spread over them evenly; without a usage
        they are taken for one each. token_source says which it was."""
        told = [chunk.known_tokens for chunk in self.chunks]
        unknown = told.count(None)
        if not unknown:
            return [count or 0 for count in told]
        known = sum(count or 0 for count in told)
        left = unknown if self.usage is None else max(0, self.usage.output_tokens - known)
        each, more = divmod(left, unknown)
        spread = iter([each + 1] * more + [each] * (unknown - more))
        return [next(spread) if count is None else count for count in told]

    @property
    def token_source(self) -> TokenSource:
        """What the number of tokens rests on."""
        if all(chunk.token_ids for chunk in self.chunks):
            return "ids"
        if all(chunk.known_tokens is not None for chunk in self.chunks):
            return "running usage"
        return "chunks" if self.usage is None else "usage"

    @property
    def num_tokens(self) -> int:
        """Of each prompt's answer."""
        return sum(self.tokens_by_chunk) // self.send.batch

    @property
    def num_decode_steps(self) -> int:
        """Tokens of an answer after the first chunk: the first chunk belongs to prefill."""
        return self.num_tokens - self._first_tokens if self.chunks else 0

    @property
    def _first_tokens(self) -> int:
        return self.tokens_by_chunk[0] // self.send.batch

    @property
    def num_held_tokens(self) -> int:
        """Tokens of an answer that came with its first, in one chunk or so shortly after one another that nothing can
        have been computed in between: who held them back put their time into TTFT."""
        if self.num_tokens < 2:
            return 0
        together_s = self.chunks[0].time_s + TOGETHER_FRAC * self.decode_s / (self.num_tokens - 1)
        arrived = zip(self.chunks, self.tokens_by_chunk, strict=True)
        return sum(count for chunk, count in arrived if chunk.time_s <= together_s) // self.send.batch - 1

    @property
    def ttft_s(self) -> float:
        """Sent to first token; a request has at least one."""
        return self.chunks[0].time_s - self.send.time_s

    @property
    def decode_s(self) -> float:
        """First to last token."""
        return self.chunks[-1].time_s - self.chunks[0].time_s if self.chunks else 0.0

    def decode_s_from(self, first_step: int) -> float:
        """Time of the decode steps from first_step on, of an engine that sends them one by one."""
        return self.chunks[-1].time_s - self.chunks[first_step].time_s

    def step_contexts(self) -> range:
        """Positions that each decode step attends to, its own included.

        The step that yields token j (from 1) takes token j-1 in, at position prompt + j - 2 (from 0): it attends to
        prompt + j - 1.
        """
        first = self.send.num_prompt_tokens + self._first_tokens if self.chunks else 0
        return range(first, first + self.num_decode_steps)


def finished_repeats(events: Iterable[Event]) -> list[Repeat]:
    """The repeats that came to their end, in order; what a killed run left unfinished is not a figure."""
    repeats: dict[int, Repeat] = {}
    for event in events:
        if isinstance(event, SendEvent):
            repeats[event.repeat] = Repeat(event)
        elif isinstance(event, ChunkEvent | PauseEvent | EndEvent):
            if event.repeat not in repeats:
                raise ConfigError(
                    f"samples: repeat {event.repeat} has a {event.event} before its send", "they are damaged"
                )
            repeats[event.repeat].add(event)
    return [repeat for _, repeat in sorted(repeats.items()) if repeat.end is not None]


def failed_requests(events: Iterable[Event]) -> list[FailEvent]:
    """The requests that came to nothing."""
    return [event for event in events if isinstance(event, FailEvent)]


def batch_of(repeats: Sequence[Repeat]) -> int:
    """Prompts that these repeats decode together."""
    return repeats[0].send.batch if repeats else 1
