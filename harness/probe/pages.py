"""Memory for the probe: private, anonymous, on huge pages where the kernel gives them.

With 4 KiB pages a reader also waits for page tables; weights of an engine lie on huge pages or should.
"""

import ctypes
import mmap
import re
from pathlib import Path

from harness.errors import UnavailableError

_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


class Pages:
    """`num_bytes` of zeroed memory; `map` supports the buffer protocol, `address` is what kernels take."""

    def __init__(self, num_bytes: int) -> None:
        try:
            # Private: Python's default is a shared mapping: a file, and no huge pages.
            self.map = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise UnavailableError(
                f"no {num_bytes} bytes of memory for the probe: {error}", "set a smaller probe.buffer_bytes"
            ) from error
        self.num_bytes = num_bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self._ask_for_huge_pages()

    def _ask_for_huge_pages(self) -> None:
        try:
            self.map.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return  # a kernel without them; huge_pages() tells what came of the asking

    def huge_pages(self) -> bool | None:
        """Whether half of it or more lies on huge pages, once touched; None if the kernel does not say."""
        try:
            smaps = _SMAPS.read_text()
        except OSError:
            return None
        return huge_bytes(smaps, self.address, self.address + self.num_bytes) * 2 >= self.num_bytes

    def close(self) -> None:
        self.map.close()


def huge_bytes(smaps: str, begin: int, end: int) -> int:
    """AnonHugePages of the mappings of /proc/self/smaps that overlap begin ... end - 1, in bytes."""
    total, inside = 0, False
    for line in smaps.splitlines():
        mapping = _MAPPING.match(line)
        if mapping:
            inside = int(mapping[1], 16) < end and int(mapping[2], 16) > begin
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1]) << 10
    return total
