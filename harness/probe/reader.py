"""What the probe needs of a way to read memory: our kernels where a compiler is, else torch's reduction."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, Protocol

LINE_BYTES = 64
WORD_BYTES = 8
BUFFER_ALIGN_BYTES = 2 * LINE_BYTES
"""Buffers are whole lines, in both halves."""
SUM_MASK = (1 << 64) - 1
"""Sums are those of 64-bit words, and wrap."""


class Buffer(Protocol):
    """Memory whose sum is known without reading it."""

    num_bytes: int
    expected_sum: int
    """Wrapping sum of all 64-bit words by what was written; fill, copy_halves and write update it."""

    def huge_pages(self) -> bool | None:
        """Whether most of it lies on huge pages; None where the kernel does not say."""

    def read(self, variant: str, num_threads: int) -> int:
        """The wrapping sum that a pass over all bytes finds."""

    def fill(self) -> None:
        """Random words."""

    def copy_halves(self) -> None:
        """The first half over the second: num_bytes / 2 read and as many written."""

    def write(self) -> None:
        """One value everywhere: num_bytes written."""

    def close(self) -> None: ...


class Reader(Protocol):
    """One or several ways to read a buffer, by name."""

    variants: tuple[str, ...]
    num_threads: int

    @property
    def method(self) -> Literal["verified-read", "torch-reduction"]: ...

    def session(self) -> AbstractContextManager[None]:
        """Around everything that is timed: threads in their places, and out of the way again afterwards."""

    def allocate(self, num_bytes: int) -> Buffer:
        """A filled buffer; num_bytes is a multiple of BUFFER_ALIGN_BYTES. UnavailableError without memory."""
