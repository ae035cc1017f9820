"""Bytes to events: whatever the portions, whatever the line ends; and what is no event stream."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.sse import MAX_EVENT_BYTES, EventDecoder, ServerEvent
from harness.errors import RequestFailed


def decoded(*portions: bytes) -> list[ServerEvent]:
    """Portion i arrives at time i."""
    decoder = EventDecoder()
    return [event for time_s, portion in enumerate(portions) for event in decoder.feed(portion, float(time_s))]


def data(*portions: bytes) -> list[str]:
    return [event.data for event in decoded(*portions)]


def test_an_event_has_the_time_of_the_portion_that_ended_it() -> None:
    assert decoded(b"data: a\n", b"\ndata: b\n\nda", b"ta: c\n", b"\n") == [
        ServerEvent(1.0, "a"), ServerEvent(1.0, "b"), ServerEvent(3.0, "c"),
    ]  # fmt: skip


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    assert data(end.join([b"data: a", b"", b"data: b", b"data: c", b"", b""])) == ["a", "b\nc"]


def test_a_line_end_cut_in_two_is_one() -> None:
    assert decoded(b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n") == [ServerEvent(1.0, "a"), ServerEvent(2.0, "b")]


def test_comments_other_fields_and_a_byte_order_mark_mean_nothing() -> None:
    assert data(b"\xef\xbb\xbfdata:a\nevent: x\nid: 1\nretry: 5\n: ping\n\n: ping\n\n\n") == ["a"]


def test_one_space_after_the_colon_belongs_to_the_format_and_no_more() -> None:
    assert data(b"data:  a \n\n") == [" a "]


def test_a_character_cut_in_two_is_whole() -> None:
    assert data("data: é\n\n".encode()[:7], "data: é\n\n".encode()[7:]) == ["é"]


@pytest.mark.parametrize(
    "stream, what",
    [
        (b"data: \xff\xfe\n\n", "not UTF-8"),
        (b'{"error": "busy"}\n', "no server-sent event"),
        (b"<html>\n", "no server-sent event"),
        (b"data: " + b"x" * MAX_EVENT_BYTES + b"y", "larger than 4 MiB"),
        (b"data: " + b"x" * 1000 + b"\n", None),
    ],
)
def test_what_is_no_event_stream(stream: bytes, what: str | None) -> None:
    if what is None:
        assert data(stream) == []
        return
    with pytest.raises(RequestFailed, match=what):
        data(stream)


def test_many_lines_of_one_event_are_too_many_together() -> None:
    line = b"data: " + b"x" * (1 << 20) + b"\n"
    with pytest.raises(RequestFailed, match="larger than 4 MiB"):
        data(*[line] * 5)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5), st.data())
def test_any_portions_give_the_same_events(texts: list[str], draw: st.DataObject) -> None:
    end = draw.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    assert data(*[stream[a:b] for a, b in pairwise(edges)]) == texts


def test_a_stream_that_ends_within_an_event_shows() -> None:
    decoder = EventDecoder()
    assert not list(decoder.feed(b"data: a\n", 0.0)) and decoder.is_within_event
    assert list(decoder.feed(b"\n", 0.0)) and not decoder.is_within_event
