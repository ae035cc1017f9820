"""The harness's side of a server that it starts: a free port, readiness, what its log says, and its end."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from harness.errors import UnavailableError

STOP_LIMIT_S = 20.0
POLL_S = 0.2
TAIL_LINES = 12
COMPILING = re.compile(
    r"torch\.compile|compil(?:ing|ation|ed)\b|captur(?:ing|ed).*graph|autotun|\bJIT\b", re.IGNORECASE
)
"""What a server says while it compiles, captures or tunes: all of that belongs before its first request."""

RAISED = re.compile(r"(?:^|\] )((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.MULTILINE)
"""A traceback's last line, alone or behind what a logger puts before it."""


def free_port() -> int:
    """One that nobody of this machine's loopback listens on now. Another process may take it before the server does:
    so a server is known by its name, not by its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server from its start to its end; use as a context manager, or call stop."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Started, and not yet ready. Both its outputs go to the log."""
        self._log, self._ready_at = log, 0
        keeper = [sys.executable, "-m", "harness.server.keeper", *command]
        with log.open("ab") as file:
            self._keeper = subprocess.Popen(
                keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline() or 0)

    def wait_until_ready(self, is_ready: Callable[[], bool], limit_s: float) -> None:
        """Asks again and again. UnavailableError with the log's last lines for one that ends or takes too long."""
        deadline_s = time.monotonic() + limit_s
        while not is_ready():
            self.check_alive()
            if time.monotonic() > deadline_s:
                self.stop()
                what = f"the server was not ready within {limit_s:g} s; its log ends: {self.tail()}"
                raise UnavailableError(what, f"raise its start limit; see {self._log}")
            time.sleep(POLL_S)
        self._ready_at = self._log.stat().st_size

    def check_alive(self, wait_s: float = 0.0) -> None:
        """UnavailableError with the log's last lines for one that has ended, or ends within wait_s: a connection is cut
        before its process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(wait_s)
        code = self._keeper.poll()
        if code is not None:
            raised = RAISED.search(self._log.read_text(errors="replace"))  # others follow from the first
            what = f"the server ended with exit code {code}" + (f": {raised[1].strip()}" if raised else "")
            raise UnavailableError(f"{what}; its log ends: {self.tail()}", f"see {self._log}")

    def tail(self) -> str:
        """The log's last lines in one, as far as they say something."""
        lines = self._log.read_text(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-TAIL_LINES:] if line.strip()) or "(it is empty)"

    def compilations_since_ready(self) -> list[str]:
        """Lines of the log that tell of compiling after the server said that it was ready."""
        with self._log.open("rb") as file:
            file.seek(self._ready_at)
            lines = file.read().decode(errors="replace").splitlines()
        return [line.strip() for line in lines if COMPILING.search(line)]

    def owns_port(self, port: int) -> bool:
        """Whether a process of this server listens there."""
        pids = {self.pid, *(child.pid for child in psutil.Process(self._keeper.pid).children(recursive=True))}
        return any(
            connection.pid in pids and connection.laddr and connection.laddr.port == port
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        )

    def stop(self) -> None:
        """The server and all that it started is gone when this returns."""
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            self._keeper.stdin.close()
        self._keeper.wait(STOP_LIMIT_S)
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
