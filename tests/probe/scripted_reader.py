"""A reader without memory: for what the probe decides, not for what it measures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal


class ScriptedBuffer:
    """Records what is done to it; its sum is its size."""

    def __init__(self, reader: "ScriptedReader", num_bytes: int) -> None:
        self.reader = reader
        self.num_bytes = self.expected_sum = num_bytes
        self.closed = False
        self.history: list[str] = []

    def huge_pages(self) -> bool | None:
        return None

    def read(self, variant: str, num_threads: int) -> int:
        assert self.reader.is_open and not self.closed
        self.reader.passes.append((variant, num_threads))
        return self.num_bytes

    def fill(self) -> None:
        self.history.append("fill")

    def copy_halves(self) -> None:
        self.history.append("copy")

    def write(self) -> None:
        self.history.append("write")

    def close(self) -> None:
        self.closed = True


class ScriptedReader:
    method: Literal["verified-read"] = "verified-read"

    def __init__(self, num_threads: int = 6, variants: tuple[str, ...] = ("one", "two")) -> None:
        self.num_threads = num_threads
        self.variants = variants
        self.is_open = False
        self.passes: list[tuple[str, int]] = []
        self.buffers: list[ScriptedBuffer] = []

    @contextmanager
    def session(self) -> Iterator[None]:
        self.is_open = True
        yield
        self.is_open = False

    def allocate(self, num_bytes: int) -> ScriptedBuffer:
        self.buffers.append(ScriptedBuffer(self, num_bytes))
        return self.buffers[-1]
