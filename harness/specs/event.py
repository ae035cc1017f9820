"""The events of a run as they were measured: one line each of `samples.jsonl`, appended as it happens.

Every derived figure of `record.json` can be computed again from them.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from harness.specs.base import Frozen
from harness.specs.engine import Evidence
from harness.specs.probe import PeakReading, ProbeReading


class ProbeEvent(Frozen):
    """A reading around a repeat. Each has two of its own: shared ones would make neighbours err together."""

    event: Literal["probe"] = "probe"
    repeat: NonNegativeInt
    place: Literal["before", "after"]
    reading: ProbeReading


class PeakEvent(Frozen):
    """What matrix products reached around a repeat whose prompt is computed: cores are shared as memory is."""

    event: Literal["peak"] = "peak"
    repeat: NonNegativeInt
    place: Literal["before", "after"]
    reading: PeakReading


class KernelReadEvent(Frozen):
    """A kernel's verified reads of weights, timed beside a probe reading: can show that the probe is not the roof."""

    event: Literal["kernel_read"] = "kernel_read"
    kernel: str
    read_bytes: PositiveInt
    calls_s: tuple[PositiveFloat, ...] = Field(min_length=1)
    reading: ProbeReading


class Usage(Frozen):
    """What a server says that a request took."""

    prompt_tokens: PositiveInt | None = None
    output_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt | None = None
    """Of the prompt, not computed but found in a prefix cache; null where the server does not tell."""


class SendEvent(Frozen):
    """The request leaves."""

    event: Literal["send"] = "send"
    repeat: NonNegativeInt
    time_s: float
    num_prompt_tokens: PositiveInt
    """Of each prompt."""
    batch: PositiveInt = 1
    """Prompts that are decoded together."""
    prompt_computed: bool = True
    """Else its places hold random keys and values, and the first token's time says nothing."""
    connect_s: NonNegativeFloat | None = None
    """How long opening its connection took, before it left; null without a connection."""


class ChunkEvent(Frozen):
    """Tokens arrive: of a batch a token for each prompt. A server's chunks without tokens are kept, too."""

    event: Literal["chunk"] = "chunk"
    repeat: NonNegativeInt
    time_s: float
    token_ids: tuple[int, ...]
    text: str = ""
    num_tokens: NonNegativeInt | None = None
    """Of a chunk without ids; null where the server does not tell how many made the text."""
    has_choice: bool = True
    """Else it came beside the answer, such as the usage behind it."""
    usage: Usage | None = None
    finish_reason: str | None = None

    @property
    def known_tokens(self) -> int | None:
        """How many it carries; null where there is text and nothing tells."""
        if self.token_ids or self.num_tokens is not None:
            return len(self.token_ids) or self.num_tokens
        return None if self.text else 0


class PauseEvent(Frozen):
    """The request waits while the probe reads, in engines that can wait: this time is in no figure."""

    event: Literal["pause"] = "pause"
    repeat: NonNegativeInt
    pause_s: float
    resume_s: float
    reading: ProbeReading


class EndEvent(Frozen):
    """The request is over."""

    event: Literal["end"] = "end"
    repeat: NonNegativeInt
    time_s: float


class FailEvent(Frozen):
    """The request came to nothing: it is kept, and is in no figure."""

    event: Literal["fail"] = "fail"
    repeat: NonNegativeInt
    time_s: float
    what: str
    mend: str


class CpuWait(Frozen):
    """Time that the cores were others', in seconds; what the kernel does not tell is null."""

    queued_s: NonNegativeFloat | None
    """Summed over our threads: ready to run, and not running."""
    others_s: NonNegativeFloat | None
    """Summed over the CPUs that we may use: running what is not ours."""
    stolen_s: NonNegativeFloat | None
    """Summed over the CPUs that we may use: given to other virtual machines."""


class ContentionEvent(Frozen):
    """What others took of the cores while a repeat's request ran."""

    event: Literal["contention"] = "contention"
    repeat: NonNegativeInt
    wall_s: PositiveFloat
    wait: CpuWait


class EvidenceEvent(Frozen):
    """The instrumented pass's answer."""

    event: Literal["evidence"] = "evidence"
    evidence: Evidence


class TraceEvent(Frozen):
    """What a profiler's trace of this run's steps says: it replaces what the instrumented pass said."""

    event: Literal["trace"] = "trace"
    trace: str
    """The file's name."""
    format: str
    steps_source: str
    """What told the number of steps, which evidence has."""
    mean_context: PositiveInt
    """Of the run's decode steps: the bytes in evidence are those of its model there."""
    evidence: Evidence


Event = Annotated[
    ProbeEvent
    | PeakEvent
    | KernelReadEvent
    | SendEvent
    | ChunkEvent
    | PauseEvent
    | EndEvent
    | FailEvent
    | ContentionEvent
    | EvidenceEvent
    | TraceEvent,
    Field(discriminator="event"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
