"""One HTTP exchange with a server: connected before it is timed, stamped at the socket, limited in every wait.

Each request has a connection of its own, opened before the request is sent: a kept one may have been closed by the
server meanwhile, and opening one is no part of a request. http.client is used for its blocking reads: the time of a
portion is taken right behind the system call that brought it, before anything is parsed.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import math
import socket
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from harness.client.server_url import ServerUrl
from harness.errors import RequestFailed

READ_BYTES = 1 << 16
SETTLE_S = 0.01
"""Between connecting and sending: the system takes a connection before the server's process accepts it, and that is no
part of a request either. Half a millisecond of TTFT where it was left out."""
REASON_BYTES = 4000


def clock_s() -> float:
    """The monotonic clock of all stamps: on Linux one for all processes of a machine."""
    return time.monotonic()


class StampedReader(io.RawIOBase):
    """A socket's bytes, the time at which the last of them came, and until when the next are waited for."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self.time_s, self.deadline_s = sock, 0.0, math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self.deadline_s - clock_s()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(None if math.isinf(left_s) else left_s)
        count = self._socket.recv_into(buffer)
        self.time_s = clock_s()
        return count

    def makefile(self, mode: str) -> io.BufferedReader:
        """What http.client asks a socket for."""
        return io.BufferedReader(self, READ_BYTES)


class Exchange:
    """One request and its answer; use as a context manager. Raises RequestFailed for whatever fails between the two."""

    def __init__(self, server: ServerUrl, connect_limit_s: float) -> None:
        """Connected, which took connect_s."""
        self._server, self._proxy = server, server.proxy
        at = self._proxy or server
        kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(at.host, at.port, timeout=connect_limit_s)
        if self._proxy is not None and server.scheme == "https":
            self._connection.set_tunnel(server.host, server.port)
        started_s = clock_s()
        with _explained(f"connecting to {at.netloc}", f"start the server, or mend the URL {server}"):
            self._connection.connect()
        self.connect_s = clock_s() - started_s
        time.sleep(SETTLE_S)
        self._reader = StampedReader(self._connection.sock)
        self._response: http.client.HTTPResponse | None = None

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> None:
        """The whole request in one write, as far as the system takes it."""
        plain_proxy = self._proxy is not None and self._server.scheme == "http"
        target = f"{self._server if plain_proxy else self._server.path}{path}"
        with _explained("sending the request"):
            self._connection.request(method, target, body, dict(headers))

    def wait_until(self, deadline_s: float) -> None:
        """What is read from now on must have come by then."""
        self._reader.deadline_s = deadline_s

    def open_answer(self) -> http.client.HTTPResponse:
        """Its headers have come; one that is no success is a failed request with the server's reason."""
        response = http.client.HTTPResponse(self._reader, method="POST")  # type: ignore[arg-type]
        with _explained("waiting for the answer"):
            response.begin()
        self._response = response
        if response.status != http.HTTPStatus.OK:
            raise RequestFailed(
                f"the server answers {response.status} {one_line(response.reason)}: {self._reason(response)}"
            )
        return response

    def portions(self) -> Iterator[tuple[bytes, float]]:
        """(bytes, when they came) until the answer ends."""
        response = self._response or self.open_answer()
        with _explained("reading the answer"):
            while portion := response.read1(READ_BYTES):
                yield portion, self._reader.time_s

    @staticmethod
    def _reason(response: http.client.HTTPResponse) -> str:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return error_text(response.read(REASON_BYTES))
        return "(no reason could be read)"

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection: a server then stops what it was computing for it."""
        self._connection.close()


def error_text(body: bytes) -> str:
    """The message of an error's body as servers write it, or the body's start; one line."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        found = json.loads(text)
        error = found.get("error", found)
        message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        text = str(message or text)
    return one_line(text)[:300] or "(no reason given)"


def one_line(text: str) -> str:
    """A stranger's words for a terminal: no control characters, which it would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))


@contextlib.contextmanager
def _explained(doing: str, mend: str = "see the server's log") -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise RequestFailed(f"{doing}: nothing came within the limit", "raise the engine's limit, or " + mend) from None
    except http.client.IncompleteRead:
        raise RequestFailed(f"{doing}: the server cut it off", mend) from None
    except (OSError, http.client.HTTPException) as fault:
        raise RequestFailed(f"{doing}: {_named(fault)}", mend) from None


def _named(fault: Exception) -> str:
    if isinstance(fault, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer"
    if isinstance(fault, ConnectionResetError | BrokenPipeError):
        return "the server reset the connection"
    return getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
