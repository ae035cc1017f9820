"""One request as a sequence of events: the timed region, the same for every engine.

Nothing stands here but the request itself, a time stamp that the engine gives each chunk, and in engines that can wait
the pauses in which the probe reads: on a machine whose memory slows down and recovers within seconds, readings before
and after a request of ten seconds do not say what it had.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Literal

from harness.devices.contention import WaitBooks
from harness.devices.spinning import wait_for_spinning_threads
from harness.engines.base import Engine
from harness.errors import RequestFailed
from harness.probe.base import Probe
from harness.specs.event import ChunkEvent, EndEvent, Event, FailEvent, PauseEvent, PeakEvent, ProbeEvent, SendEvent
from harness.specs.request import Request

SERVER_SETTLE_S = 0.3
"""Intel's OpenMP lets threads spin for 0.2 s after their work."""


def request_events(
    engine: Engine, probe: Probe | None, request: Request, repeat: int, every_s: float | None, books: WaitBooks | None
) -> Iterator[Event]:
    """Send, chunks as they come, end; a pause with a reading after the first token and then every every_s.

    So nothing stands between a request and its TTFT, and the first decode steps do not rest on a reading from before a
    long prompt. books: what others took of the cores outside the pauses; None where time is scripted.
    """
    num_prompt_tokens = engine.num_prompt_tokens(request)
    if books is not None:
        books.open()
    try:
        connect_s = engine.prepare(request)
        sent_s, chunks = engine.clock_s(), engine.generate(request)
        yield SendEvent(
            repeat=repeat, time_s=sent_s, num_prompt_tokens=num_prompt_tokens, batch=request.batch,
            prompt_computed=not request.skip_prompt, connect_s=connect_s,
        )  # fmt: skip
        due_s = -math.inf
        for chunk in chunks:
            yield ChunkEvent(repeat=repeat, **vars(chunk))
            if probe is None or every_s is None or not engine.can_pause:
                continue
            if chunk.token_ids and chunk.time_s >= due_s:
                yield from _pause(engine, probe, repeat, books)
                due_s = engine.clock_s() + every_s
        yield EndEvent(repeat=repeat, time_s=engine.clock_s())
    except RequestFailed as fault:
        yield FailEvent(repeat=repeat, time_s=engine.clock_s(), what=fault.what, mend=fault.mend)
    if books is not None:
        yield books.closed(repeat)


def _pause(engine: Engine, probe: Probe, repeat: int, books: WaitBooks | None) -> Iterator[Event]:
    pause_s = engine.clock_s()
    if books is not None:
        yield books.closed(repeat)
    wait_for_spinning_threads()  # a library's, after the step
    reading = probe.read()
    if books is not None:
        books.open()
    yield PauseEvent(repeat=repeat, pause_s=pause_s, resume_s=engine.clock_s(), reading=reading)


def reading_events(
    probe: Probe | None, repeat: int, place: Literal["before", "after"], peak_dtype: str | None = None,
    books: WaitBooks | None = None,
) -> Iterator[Event]:  # fmt: skip
    """The bracketing readings of a repeat; none without a probe. peak_dtype: of the products that a prompt is held
    against, null where none is computed. Memory is read next to the request, as decode steps follow its state closely.
    books: what others take of the cores while memory is read, where the engine is a process of its own: its threads may
    spin on while it idles, and a roof read beside them would flatter it. They have a moment to go to sleep.
    """
    if probe is None:
        return
    peak = None if peak_dtype is None or place == "after" else probe.read_peak(peak_dtype)
    wait_for_spinning_threads()
    if books is not None:
        time.sleep(SERVER_SETTLE_S)
        books.open()
    reading = probe.read()
    if books is not None:
        yield books.closed(repeat)
    yield ProbeEvent(repeat=repeat, place=place, reading=reading)
    if peak_dtype is not None and place == "after":
        peak = probe.read_peak(peak_dtype)
    if peak is not None:
        yield PeakEvent(repeat=repeat, place=place, reading=peak)
