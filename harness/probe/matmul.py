"""Peak of matrix products by type: the other side of the ridge, and the denominator of MFU."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SIZES = (256, 512, 1024, 2048)


def peak_flop_per_s(num_threads: int, time_s: float) -> dict[str, float]:
    """Best rate of torch's square products on random data, by type (BF16, F32); empty without torch.

    Random data: zeros draw less power and keep a higher clock. Takes about `time_s`.
    """
    if find_spec("torch") is None:
        return {}
    import torch

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return {name: _best_flop_per_s(dtype, time_s / len(dtypes)) for name, dtype in dtypes.items()}
    finally:
        torch.set_num_threads(threads_before)


def _best_flop_per_s(dtype: torch.dtype, time_s: float) -> float:
    """The fastest product of growing sizes: 2 n^3 FLOP each.

    Stops where the next size would not fit the time: a CPU without the type's instructions is slow at it.
    """
    best = 0.0
    for size in _SIZES:
        product_s = _product_s(size, dtype, time_s / len(_SIZES))
        best = max(best, 2 * size**3 / product_s)
        if 8 * product_s > time_s:
            break
    return best


def _product_s(size: int, dtype: torch.dtype, time_s: float) -> float:
    """Time of the fastest of the products that `time_s` allows, after one that sets up threads and caches."""
    import torch

    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.mm(left, right)
    times_s: list[float] = []
    end_s = time.perf_counter() + time_s
    while not times_s or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        torch.mm(left, right, out=out)
        times_s.append(time.perf_counter() - begin_s)
    return min(times_s)
