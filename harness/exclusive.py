"""One measurement at a time on a machine: two at once would each report half of it, and neither would know."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.errors import UnavailableError


@contextlib.contextmanager
def measuring(say: Callable[[str], None]) -> Iterator[None]:
    """Hold this user's measuring lock; while another run holds it, say so and wait."""
    path = Path(tempfile.gettempdir()) / f"llm-decode-harness-{os.getuid()}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise UnavailableError(f"{path}: {fault.strerror}", "remove the file, or point TMPDIR elsewhere") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is measuring on this machine: waiting until it ends")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
