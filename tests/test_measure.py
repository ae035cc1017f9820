"""The timed region: what comes between the chunks, and what does not."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from harness.devices.contention import WaitBooks
from harness.engines.base import KERNEL_READ_TRIALS, MIN_KERNEL_READ_TRIALS, side_by_side
from harness.measure import SERVER_SETTLE_S, reading_events, request_events
from harness.specs.event import ContentionEvent, PauseEvent, SendEvent
from harness.specs.probe import PeakReading, ProbeReading
from harness.specs.request import Chunk, Request

REQUEST = Request(None, ((1, 2, 3),), 8, ignore_eos=True)


class Engine:
    """Chunks at given times of a clock that the probe moves as well."""

    can_pause: ClassVar[bool] = True

    def __init__(self, chunks: Sequence[tuple[float, tuple[int, ...]]]) -> None:
        self.chunks, self.now_s = chunks, 0.0

    def clock_s(self) -> float:
        return self.now_s

    def num_prompt_tokens(self, request: Request) -> int:
        return 3

    def prepare(self, request: Request) -> float | None:
        return None

    def generate(self, request: Request) -> Iterator[Chunk]:
        for step_s, token_ids in self.chunks:
            self.now_s += step_s
            yield Chunk(self.now_s, token_ids)


class Server(Engine):
    can_pause: ClassVar[bool] = False


class Probe:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def read(self, reading_s: float | None = None) -> ProbeReading:
        self.engine.now_s += 0.5
        return reading(1.0)


def reading(pass_s: float) -> ProbeReading:
    return ProbeReading(pass_bytes=1, passes_s=(pass_s,), variant="x")


def kinds(engine: Engine, every_s: float | None = 2.0, with_probe: bool = True) -> list[str]:
    probe = Probe(engine) if with_probe else None
    return [event.event for event in request_events(engine, probe, REQUEST, 0, every_s, None)]  # type: ignore[arg-type]


def test_the_first_pause_follows_the_first_token_and_the_next_come_every_two_seconds() -> None:
    engine = Engine([(5.0, (1,)), *[(1.0, (1,))] * 5])
    assert kinds(engine) == [
        "send", "chunk", "pause", "chunk", "chunk", "pause", "chunk", "chunk", "pause", "chunk", "end",
    ]  # fmt: skip


def test_a_chunk_without_a_token_is_not_followed_by_a_pause() -> None:
    assert kinds(Engine([(1.0, ()), (5.0, ()), (1.0, (1,))])) == ["send", "chunk", "chunk", "chunk", "pause", "end"]


@pytest.mark.parametrize("engine", [Engine, Server])
def test_without_probe_or_period_and_in_a_server_nothing_pauses(engine: type[Engine]) -> None:
    chunks = [(9.0, (1,))] * 3
    assert "pause" not in kinds(engine(chunks), every_s=None)
    assert "pause" not in kinds(engine(chunks), with_probe=False)
    assert ("pause" in kinds(engine(chunks))) is engine.can_pause


def test_a_pause_lasts_as_long_as_its_reading() -> None:
    engine = Engine([(1.0, (1,)), (1.0, (1,))])
    (pause,) = [e for e in request_events(engine, Probe(engine), REQUEST, 7, 2.0, None) if isinstance(e, PauseEvent)]  # type: ignore[arg-type]
    assert (pause.repeat, pause.pause_s, pause.resume_s) == (7, 1.0, 1.5)


def test_no_reading_while_threads_of_the_step_still_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting takes the pause's time, not a step's."""
    engine = Engine([(1.0, (1,)), (1.0, (1,))])
    order: list[str] = []

    class OrderedProbe(Probe):
        def read(self, reading_s: float | None = None) -> ProbeReading:
            order.append("read")
            return super().read(reading_s)

    def wait() -> None:
        order.append("wait")
        engine.now_s += 0.25

    monkeypatch.setattr("harness.measure.wait_for_spinning_threads", wait)
    probe: Any = OrderedProbe(engine)
    (pause,) = [e for e in request_events(engine, probe, REQUEST, 7, 2.0, None) if isinstance(e, PauseEvent)]  # type: ignore[arg-type]
    assert (pause.pause_s, pause.resume_s) == (1.0, 1.75)
    assert [event.event for event in reading_events(probe, 0, "before")] == ["probe"]
    assert order == ["wait", "read"] * 2


def test_the_books_of_the_cores_are_closed_over_a_pause() -> None:
    engine = Engine([(1.0, (1,)), (1.0, (1,))])
    events = list(request_events(engine, Probe(engine), REQUEST, 3, 2.0, WaitBooks()))  # type: ignore[arg-type]
    assert [event.event for event in events] == ["send", "chunk", "contention", "pause", "chunk", "end", "contention"]
    assert {event.repeat for event in events if isinstance(event, ContentionEvent)} == {3}


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_books_of_a_reading_beside_a_server_are_closed_behind_it(place: Any) -> None:
    events = list(reading_events(BothProbe(), 2, place, "BF16", WaitBooks()))  # type: ignore[arg-type]
    names = [event.event for event in events]
    assert names.index("contention") == names.index("probe") - 1 and names.count("contention") == 1
    (found,) = [event for event in events if isinstance(event, ContentionEvent)]
    assert found.repeat == 2 and found.wall_s < SERVER_SETTLE_S  # the moment to settle is not in it


def test_no_probe_no_reading() -> None:
    assert list(reading_events(None, 0, "before")) == []
    assert list(reading_events(None, 0, "before", "BF16")) == []


class BothProbe:
    """Reads memory and products, and remembers in which order."""

    peak: float | None = 1e12

    def __init__(self) -> None:
        self.order: list[str] = []

    def read(self, reading_s: float | None = None) -> ProbeReading:
        self.order.append("memory")
        return reading(1.0)

    def read_peak(self, dtype: str) -> PeakReading | None:
        self.order.append(dtype)
        return None if self.peak is None else PeakReading(dtype=dtype, flop_per_s=self.peak)


@pytest.mark.parametrize(("place", "order"), [("before", ["BF16", "memory"]), ("after", ["memory", "BF16"])])
def test_memory_is_read_next_to_the_request_and_products_beyond(place: Any, order: list[str]) -> None:
    probe = BothProbe()
    events = list(reading_events(probe, 3, place, "BF16"))  # type: ignore[arg-type]
    assert probe.order == order
    assert {event.event for event in events} == {"probe", "peak"}
    assert {(event.repeat, event.place) for event in events} == {(3, place)}  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["before", "after"])
def test_without_a_prompt_no_products_are_timed(place: Any) -> None:
    probe = BothProbe()
    assert [event.event for event in reading_events(probe, 0, place)] == ["probe"]  # type: ignore[arg-type]
    assert probe.order == ["memory"]


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_type_whose_products_are_not_timed_has_no_peak(place: Any) -> None:
    probe = BothProbe()
    probe.peak = None
    assert [event.event for event in reading_events(probe, 0, place, "F8")] == ["probe"]  # type: ignore[arg-type]


def test_the_send_says_how_many_prompts_and_whether_they_are_computed() -> None:
    engine = Engine([(1.0, (1, 1))])
    asked = Request(None, ((1, 2, 3),) * 2, 1, ignore_eos=True, skip_prompt=True)
    send = next(iter(request_events(engine, None, asked, 4, None, None)))  # type: ignore[arg-type]
    assert isinstance(send, SendEvent)
    assert (send.repeat, send.num_prompt_tokens, send.batch, send.prompt_computed) == (4, 3, 2, False)
    computed = next(iter(request_events(engine, None, REQUEST, 4, None, None)))  # type: ignore[arg-type]
    assert isinstance(computed, SendEvent)
    assert (computed.batch, computed.prompt_computed) == (1, True)


def test_kernel_and_probe_take_turns_in_going_first() -> None:
    order: list[str] = []

    def calls() -> tuple[float, ...]:
        order.append("kernel")
        return (1.0,)

    def probe() -> ProbeReading:
        order.append("probe")
        return reading(0.5)

    trials = list(side_by_side(calls, probe))
    assert len(trials) == KERNEL_READ_TRIALS
    assert order[:6] == ["probe", "kernel", "kernel", "probe", "probe", "kernel"]


def test_long_reads_are_tried_no_oftener_than_the_median_needs() -> None:
    assert len(list(side_by_side(lambda: (60.0,), lambda: reading(60.0)))) == MIN_KERNEL_READ_TRIALS
