"""A server's life: ready, dead, late, and gone without an orphan however the harness ends. All by real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.errors import UnavailableError
from harness.server.process import ServerProcess, free_port

LIMIT_S = 30.0
# A server with a child that has left its group, session and parent behind, as daemons do.
SERVER = """
import http.server, subprocess, sys
subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo $! > " + sys.argv[2]])
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
# The harness in a process of its own, which tells the server's pid and then does nothing until it is ended.
OWNER = """
import os, sys, time
from pathlib import Path
from harness.server.process import ServerProcess
server = ServerProcess(sys.argv[2:], os.environ, Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""


def until(happens: Callable[[], object]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not happens():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def started(folder: Path) -> tuple[ServerProcess, int]:
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port), str(folder / "orphan")]
    return ServerProcess(command, os.environ, folder / "server.log"), port


def orphan(folder: Path) -> int:
    until(lambda: (folder / "orphan").is_file() and (folder / "orphan").read_text().strip())
    return int((folder / "orphan").read_text())


def test_ready_known_by_its_port_and_gone_with_all_that_it_started(tmp_path: Path) -> None:
    server, port = started(tmp_path)
    server.wait_until_ready(lambda: answers(port), LIMIT_S)
    left = orphan(tmp_path)
    assert server.owns_port(port) and not is_gone(left)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not server.owns_port(other.getsockname()[1])
    server.stop()
    assert is_gone(server.pid) and is_gone(left) and not answers(port)
    assert "listening" in server.tail()


def test_one_that_ends_says_so_with_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('out of memory'); sys.exit(7)"]
    server = ServerProcess(command, os.environ, tmp_path / "server.log")
    with pytest.raises(UnavailableError, match="exit code 7; its log ends: out of memory"):
        server.wait_until_ready(lambda: False, LIMIT_S)
    server.stop()


@pytest.mark.parametrize("prefix", ["", "(EngineCore pid=7) ERROR 11-30 19:35:25 [core.py:1510] "])
def test_the_first_exception_in_the_log_is_named(prefix: str, tmp_path: Path) -> None:
    """A server's own processes raise one after another, and the last knows least."""
    lines = "loading", "an Error: no exception", f"{prefix}a.b.ValueError: no ray here", "RuntimeError: see above"
    code = f"import sys; print(*{lines!r}, sep=chr(10)); sys.exit(1)"
    server = ServerProcess([sys.executable, "-c", code], os.environ, tmp_path / "server.log")
    with pytest.raises(
        UnavailableError, match=r"exit code 1: a\.b\.ValueError: no ray here; its log ends: .*see above"
    ):
        server.wait_until_ready(lambda: False, LIMIT_S)
    server.stop()


def test_one_that_is_killed_says_by_which_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    server = ServerProcess(command, os.environ, tmp_path / "server.log")
    with pytest.raises(UnavailableError, match=r"exit code 137; its log ends: \(it is empty\)"):
        server.wait_until_ready(lambda: False, LIMIT_S)
    server.stop()


def test_one_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    server, _ = started(tmp_path)
    left = orphan(tmp_path)
    with pytest.raises(UnavailableError, match=r"not ready within 0\.5 s; its log ends: listening"):
        server.wait_until_ready(lambda: False, 0.5)
    assert is_gone(server.pid) and is_gone(left)


def test_one_that_does_not_listen_to_reason_is_killed(tmp_path: Path) -> None:
    server = ServerProcess([sys.executable, "-c", STUBBORN], os.environ, tmp_path / "server.log")
    until(lambda: "deaf" in server.tail())
    server.stop()
    assert is_gone(server.pid)


def _as_in_a_terminal() -> None:
    """What is started in the background ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_orphan_when_the_harness_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", SERVER, str(free_port()), str(tmp_path / "orphan")]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "server.log"), *command], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_in_a_terminal,
    )  # fmt: skip
    assert owner.stdout is not None
    pid, left = int(owner.stdout.readline()), orphan(tmp_path)
    assert not is_gone(pid) and not is_gone(left)
    os.killpg(owner.pid, number)  # as a terminal's Ctrl-C does: the whole group
    owner.wait(LIMIT_S)
    owner.stdout.close()
    until(lambda: is_gone(pid) and is_gone(left))


def test_what_it_compiles_after_it_is_ready_is_found(tmp_path: Path) -> None:
    program = "import time; print('Compiling a graph', flush=True); time.sleep(600)"
    server = ServerProcess([sys.executable, "-c", program], os.environ, tmp_path / "server.log")
    until(lambda: "Compiling" in server.tail())
    server.wait_until_ready(lambda: True, LIMIT_S)
    assert server.compilations_since_ready() == []
    with (tmp_path / "server.log").open("a") as log:
        log.write("INFO served 1 request\nINFO torch.compile takes 3.2 s\nCapturing CUDA graphs: 1/7\n")
    assert server.compilations_since_ready() == ["INFO torch.compile takes 3.2 s", "Capturing CUDA graphs: 1/7"]
    server.stop()
