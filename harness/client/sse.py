"""Server-sent events out of bytes as they arrive, each with the time at which its last byte came.

The format is the event stream of the HTML standard; of its fields only `data` means anything here, and an
`event` of errors. What it leaves to a
reader's patience is a fault: a stream that isn't one is better failed than measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.client.connection import error_text
from harness.errors import RequestFailed

MAX_EVENT_BYTES = 4 << 20
"""A thousand times what a token takes: beyond that it is no answer, and memory is finite."""
FIELDS = (b"data", b"event", b"id", b"retry")


@dataclass(frozen=True)
class ServerEvent:
    """One event's data, and when it was complete."""

    time_s: float
    data: str


class EventDecoder:
    """Takes bytes in any portions: within a character, within a line, many events at once."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._data: list[bytes] = []
        self._is_error = False
        self._size = 0

    def feed(self, received: bytes, time_s: float) -> Iterator[ServerEvent]:
        """The events that end in these bytes. Raises RequestFailed for what is no event stream."""
        if self._after_cr and received.startswith(b"\n"):  # the other half of a line's end
            received = received[1:]
        self._after_cr = False
        lines = (self._rest + received).splitlines(keepends=True)
        self._rest = lines.pop() if lines and lines[-1][-1:] not in (b"\r", b"\n") else b""
        for line in lines:
            self._after_cr = line.endswith(b"\r")
            yield from self._line(line.rstrip(b"\r\n"), time_s)
        self._check_size(len(self._rest))

    def _line(self, line: bytes, time_s: float) -> Iterator[ServerEvent]:
        if line:
            self._field(line)
        elif self._data:
            data = b"\n".join(self._data)
            self._data, self._size = [], 0
            if self._is_error:
                raise RequestFailed(f"the server reports an error within the stream: {error_text(data)}")
            yield ServerEvent(time_s, _text(data))

    def _field(self, line: bytes) -> None:
        name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
            self._check_size(0)
        elif name == b"event" and value.strip() == b"error":
            self._is_error = True
        elif name and name not in FIELDS:  # a comment has no name
            raise RequestFailed(f"the stream has a line that is no server-sent event: {_shown(line)}")

    def _check_size(self, unfinished: int) -> None:
        if self._size + unfinished > MAX_EVENT_BYTES:
            raise RequestFailed(f"an event of the stream is larger than {MAX_EVENT_BYTES >> 20} MiB")

    @property
    def is_within_event(self) -> bool:
        """Bytes came that no event has taken: a stream that ends here was cut off."""
        return bool(self._rest or self._data)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        raise RequestFailed(f"an event of the stream is not UTF-8: {_shown(data[fault.start :])}") from None


def _shown(data: bytes) -> str:
    return repr(data[:60])[1:]
