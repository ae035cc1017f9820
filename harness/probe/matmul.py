"""Peak of matrix products by type: the other side of the ridge, and the denominator of MFU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_SIZES = (256, 512, 1024, 2048)
DTYPES = {"BF16": "bfloat16", "F32": "float32"}
"""The types that are timed, by their safetensors names, with torch's."""


def peak_flop_per_s(num_threads: int, time_s: float) -> dict[str, float]:
    """Best rate of torch's square products on random data, by type (BF16, F32); empty without torch.

    Random data: zeros draw less power and keep a higher clock. Takes about `time_s`.
    """
    if find_spec("torch") is None:
        return {}
    with _threads(num_threads):
        return {name: _best_flop_per_s(name, time_s / len(DTYPES)) for name in DTYPES}


def flop_per_s_now(dtype: str, num_threads: int, time_s: float) -> float | None:
    """Mean rate of products of the largest size of which some fit the time: what a prompt beside it could have had.

    Not the best of them: a prompt takes seconds, in which cores that are shared slow down and recover. Null without
    torch, and for types that are not timed.
    """
    if find_spec("torch") is None or dtype not in DTYPES:
        return None
    with _threads(num_threads):
        size = _SIZES[0]
        while 2 * size in _SIZES and 8 * min(_products_s(size, dtype, 0.0)) < time_s / 8:
            size *= 2
        times_s = _products_s(size, dtype, time_s)
    return 2 * size**3 * len(times_s) / sum(times_s)


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    """torch's products on so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _best_flop_per_s(dtype: str, time_s: float) -> float:
    """The fastest product of growing sizes: 2 n^3 FLOP each.

    Stops where the next size would not fit the time: a CPU without the type's instructions is slow at it.
    """
    best = 0.0
    for size in _SIZES:
        product_s = min(_products_s(size, dtype, time_s / len(_SIZES)))
        best = max(best, 2 * size**3 / product_s)
        if 8 * product_s > time_s:
            break
    return best


def _products_s(size: int, dtype: str, time_s: float) -> list[float]:
    """Times of the products that `time_s` allows, at least one, after one that sets up threads and caches."""
    import torch

    left, right = (torch.randn(size, size).to(getattr(torch, DTYPES[dtype])) for _ in range(2))
    out = torch.mm(left, right)
    times_s: list[float] = []
    end_s = time.perf_counter() + time_s
    while not times_s or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        torch.mm(left, right, out=out)
        times_s.append(time.perf_counter() - begin_s)
    return times_s
