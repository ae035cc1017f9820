"""Reads memory by torch.sum, where no compiler is here to build a better reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from harness.devices.cpu import physical_cores
from harness.errors import UnavailableError
from harness.probe.pages import Pages
from harness.probe.reader import SUM_MASK, WORD_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEED = 0x5EED
_CHUNK_WORDS = 1 << 20
_WRITTEN_WORD = 0x0123456789ABCDEF


class TorchReader:
    """One variant: the sum of the buffer as int64. UnavailableError where torch is not installed."""

    method: Literal["torch-reduction"] = "torch-reduction"
    variants: tuple[str, ...] = ("torch.sum int64",)

    def __init__(self) -> None:
        if find_spec("torch") is None:
            raise UnavailableError(
                "neither a C++ compiler nor torch is here to read memory with",
                "install g++ (apt install g++)",
            )
        self.num_threads = len(physical_cores())

    @contextmanager
    def session(self) -> Iterator[None]:
        """Leaves torch's thread count as it was. Its threads are not pinned: they are torch's own."""
        import torch

        threads_before = torch.get_num_threads()
        try:
            yield
        finally:
            torch.set_num_threads(threads_before)

    def allocate(self, num_bytes: int) -> TorchBuffer:
        return TorchBuffer(num_bytes)


class TorchBuffer:
    """A buffer that numpy fills and torch reads; the expected sums are numpy's, of words not yet stored."""

    def __init__(self, num_bytes: int) -> None:
        import numpy as np
        import torch

        self.num_bytes = num_bytes
        self.expected_sum = 0
        self._pages = Pages(num_bytes)
        self._words = torch.from_numpy(np.frombuffer(self._pages.map, np.int64))
        self.fill()

    def huge_pages(self) -> bool | None:
        return self._pages.huge_pages()

    def read(self, variant: str, num_threads: int) -> int:
        import torch

        torch.set_num_threads(num_threads)
        return int(self._words.sum()) & SUM_MASK

    def fill(self) -> None:
        import torch

        half = self._words.numel() // 2
        sums = []
        for words, seed in ((self._words[:half], _SEED), (self._words[half:], _SEED + 1)):
            sums.append(0)
            for place, chunk in zip(torch.split(words, _CHUNK_WORDS), _generated(half, seed), strict=True):
                sums[-1] += int(chunk.sum())
                place.copy_(torch.from_numpy(chunk))
        self._half_sum = sums[0]
        self.expected_sum = sum(sums) & SUM_MASK

    def copy_halves(self) -> None:
        half = self._words.numel() // 2
        self._words[half:].copy_(self._words[:half])
        self.expected_sum = 2 * self._half_sum & SUM_MASK

    def write(self) -> None:
        self._words.fill_(_WRITTEN_WORD)
        self.expected_sum = _WRITTEN_WORD * (self.num_bytes // WORD_BYTES) & SUM_MASK

    def close(self) -> None:
        del self._words  # it holds on to the map
        self._pages.close()


def _generated(num_words: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Random words in chunks."""
    import numpy as np

    random = np.random.default_rng(seed)
    bounds = np.iinfo(np.int64)
    for begin in range(0, num_words, _CHUNK_WORDS):
        size = min(_CHUNK_WORDS, num_words - begin)
        yield random.integers(bounds.min, bounds.max, size, np.int64, endpoint=True)
