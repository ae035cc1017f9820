"""The words that the read probe fills its buffer with, and their sum, in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def words(seed: int, num_words: int) -> NDArray[np.uint64]:
    """splitmix64 of seed + 0, seed + 1, ...; shape [num_words]."""
    import numpy as np

    z = (np.uint64(seed) + np.arange(num_words, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def wrapping_sum(values: NDArray[np.uint64]) -> int:
    """Modulo 2^64, by Python's exact integers."""
    return sum(values.tolist()) % (1 << 64)
