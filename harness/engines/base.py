"""What an engine is: takes one request, yields its tokens as they come, each with the time it arrived.

`bench` knows only this protocol, so a server across HTTP, vLLM in this process, our own decoder and a scripted one
are measured by the same code. Times are of the engine's own monotonic clock (`clock_s`): a scripted engine's runs as
fast as the test does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from harness.errors import UnavailableError
from harness.models import ResolvedModel
from harness.probe.base import Probe
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport, Evidence
from harness.specs.event import KernelReadEvent
from harness.specs.probe import ProbeReading
from harness.specs.request import Chunk, Request
from harness.specs.run import RunConfig

DECODE_TRACE, PREFILL_TRACE = "trace-decode.json.gz", "trace-prefill.json.gz"
EXPLAIN_STEPS = 16
"""Decode steps of the instrumented pass."""
KERNEL_READ_TRIALS = 15
"""Trials of a kernel's reads beside the probe's: of so many, three wild ones do not stretch the median's interval."""
MIN_KERNEL_READ_TRIALS = 6
"""The least whose median has a 95 % interval; more as far as KERNEL_READ_S goes: a large model's reads are long."""
KERNEL_READ_S = 30.0
CALLS_PER_TRIAL = 3


def side_by_side(
    read_calls: Callable[[], tuple[float, ...]], read_probe: Callable[[], ProbeReading]
) -> Iterator[tuple[tuple[float, ...], ProbeReading]]:
    """(times of a kernel's calls, reading of the probe) by trial, the two in turning order: a drift cancels."""
    spent_s = 0.0
    for trial in range(KERNEL_READ_TRIALS):
        if trial >= MIN_KERNEL_READ_TRIALS and spent_s > KERNEL_READ_S:
            return
        if trial % 2:
            calls_s, reading = read_calls(), read_probe()
        else:
            reading, calls_s = read_probe(), read_calls()
        spent_s += sum(calls_s) + sum(reading.passes_s)
        yield calls_s, reading


class Engine(Protocol):
    """A loaded model that answers one request at a time."""

    can_skip_prompt: ClassVar[bool]
    """Takes requests whose prompt is not computed (`Request.skip_prompt`)."""

    @property
    def can_pause(self) -> bool:
        """Computes nothing between two chunks that it is asked for: a server goes on, whoever waits."""

    def clock_s(self) -> float:
        """The monotonic clock that chunks are stamped with."""

    takes_ids: bool = True
    """Prompts as token ids; else as texts alone."""

    def num_prompt_tokens(self, request: Request) -> int: ...

    def prepare(self, request: Request) -> float | None:
        """What comes before the request is sent and is no part of it: a connection, and how long opening it took; null
        without one. RequestFailed where the server can't be reached."""
        return None

    def generate(self, request: Request) -> Iterator[Chunk]:
        """Sends the request when it is called, or when its first chunk is asked for. A server's engine raises
        RequestFailed while it is iterated, for whatever makes the answer no answer."""

    def kernel_reads(self, read_probe: Callable[[], ProbeReading]) -> Iterator[KernelReadEvent]:
        """Verified reads of the engine's weights by its own kernels, each beside a probe reading.

        A kernel that reads faster than the probe shows that the probe is not the roof. Nothing where there is none.
        """

    def explain(self, request: Request, num_steps: int) -> Evidence:
        """Where a decode step's time goes, from a separate, instrumented pass; what is not known is null."""

    def trace(self, request: Request, num_steps: int, folder: Path, first_step: int | None = None) -> None:
        """Leaves torch profiler's traces of a prompt's first chunk (PREFILL_TRACE) and of so many decode steps
        (DECODE_TRACE) in the folder. first_step: how many steps come before them; null: they begin in the middle of
        the answer, where the cache costs what it cost the run on average. UnavailableError for an engine that can take
        none."""
        raise UnavailableError(
            "this engine takes no trace", "profile the server itself, and read what it leaves: harness profile TRACE"
        )

    def audit(self) -> None:
        """Behind the last request: proof that the weights are as they were loaded, where the engine can give it; from
        then on it is in the report. MeasurementError where they are not."""
        return

    def report(self) -> EngineReport:
        """What RAN: backend per layer and shape, bytes it reads, memory, preparation time."""

    def close(self) -> None: ...


PairOpener = Callable[[Path], Sequence[Engine]]
"""Given where logs go: two engines on the same weights. Closing one of them may end both."""


class Rig(Protocol):
    """A registered kind of engine on this machine: its device, the probe of that device, and the engine itself.

    The probe is opened first: its buffer is allocated before the engine takes the memory.
    """

    device: DeviceInfo

    def __init__(self, config: RunConfig, model: ResolvedModel) -> None: ...

    def open_probe(self) -> Probe | None:
        """None where this machine can't probe the memory that the engine reads from (a remote server)."""

    def open_engine(self, log_dir: Path) -> Engine:
        """log_dir: where an engine that is a process of its own leaves its log."""

    def sharing(self, other: RunConfig) -> PairOpener | None:
        """Opens this rig's engine and, second, one of another configuration on the same weights; their requests must
        not overlap. None: the other needs a rig of its own. ConfigError where they would share more than weights."""
        return None

    def close(self) -> None: ...
