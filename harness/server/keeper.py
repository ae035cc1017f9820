"""A process between the harness and the server that it starts, whose only task is that no orphan is left.

    python -m harness.server.keeper COMMAND...

The harness holds the other end of its standard input. When that closes - the harness is done, has failed, was
interrupted or was killed with no chance to do anything - the server and all that descends from it is ended: first
asked, then killed. It stands in a session of its own, so that Ctrl-C in the harness's terminal reaches neither it nor
the server; and it is the subreaper of whatever the server starts and leaves behind, so that nothing gets away by
outliving its parent. Should the server end first, the keeper ends with its exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

GRACE_S = 5.0
"""Between asking and killing: a GPU's memory is given back in order where there is time for it."""
POLL_S = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the closing of its input ends it
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Its output goes where our errors go, to the log: our own output is the harness's.
    server = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=lambda: _as_server(libc)
    )
    print(server.pid, flush=True)
    code = _watch(server)
    _end_all()
    sys.exit(code)


def _as_server(libc: ctypes.CDLL) -> None:
    """Between fork and exec: signals as usual again, and no life without the keeper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(server: subprocess.Popen[bytes]) -> int:
    """Returns when the server has ended, or nobody holds our input any more."""
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            return 0
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _end_all() -> None:
    """Until nothing descends from us: also what a dying process started meanwhile."""
    deadline_s = time.monotonic() + GRACE_S
    _signal_all(signal.SIGTERM)
    while _living():
        if time.monotonic() > deadline_s:
            _signal_all(signal.SIGKILL)
        time.sleep(POLL_S)


def _living() -> Sequence[psutil.Process]:
    """All descendants; the dead among them are reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return psutil.Process().children(recursive=True)


def _signal_all(number: int) -> None:
    for process in _living():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


if __name__ == "__main__":
    main()
