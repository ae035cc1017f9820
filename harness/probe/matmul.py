"""Peak of matrix products by type: the other side of the ridge, and the denominator of MFU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

_SIZES = (256, 512, 1024, 2048)
_GPU_SIZES = (1024, 2048, 4096, 8192)
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""The types that are timed, by their safetensors names, with torch's."""
_ARITHMETIC = {"BF16": ("BF16", "F32"), "F16": ("F16", "F32"), "F32": ("F32",)}
"""What a type's products may be done in: the type's own arithmetic, or a wider one that holds its values exactly."""


@dataclass(frozen=True)
class Peak:
    """A rate, and the type whose arithmetic it is of."""

    flop_per_s: float
    arithmetic: str


def find_peaks(num_threads: int, time_s: float, device: str = "cpu") -> dict[str, Peak]:
    """Best rate of torch's square products on random data, by type (BF16, F16, F32); empty without torch.

    A type's peak is that of the fastest arithmetic that can do its products: on a CPU without bf16's instructions
    torch multiplies bf16 at a fraction of what it makes of the same values in fp32, and that is no wall.

    device: as torch names it; num_threads are a CPU's.

    Random data: zeros draw less power and keep a higher clock. Takes about `time_s`.
    """
    if find_spec("torch") is None:
        return {}
    with _threads(num_threads, device):
        rates = {name: _best_flop_per_s(name, time_s / len(DTYPES), device) for name in DTYPES}
    fastest = {name: max(ways, key=rates.__getitem__) for name, ways in _ARITHMETIC.items()}
    return {name: Peak(rates[way], way) for name, way in fastest.items()}


def flop_per_s_now(dtype: str, num_threads: int, time_s: float, device: str = "cpu") -> float | None:
    """Mean rate of products of the largest size of which some fit the time: what a prompt beside it could have had.

    Not the best of them: a prompt takes seconds, in which cores that are shared slow down and recover. Null without
    torch, and for types that are not timed.
    """
    if find_spec("torch") is None or dtype not in DTYPES:
        return None
    sizes = _sizes(device)
    with _threads(num_threads, device):
        size = sizes[0]
        while 2 * size in sizes and 8 * min(_products_s(size, dtype, 0.0, device)) < time_s / 8:
            size *= 2
        times_s = _products_s(size, dtype, time_s, device)
    return 2 * size**3 * len(times_s) / sum(times_s)


def _sizes(device: str) -> tuple[int, ...]:
    """A GPU is not filled by small products."""
    return _SIZES if device == "cpu" else _GPU_SIZES


@contextmanager
def _threads(num_threads: int, device: str) -> Iterator[None]:
    """torch's products on so many threads of a CPU."""
    import torch

    if device != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _best_flop_per_s(dtype: str, time_s: float, device: str) -> float:
    """The fastest product of growing sizes: 2 n^3 FLOP each.

    Stops where the next size would not fit the time: a CPU without the type's instructions is slow at it.
    """
    best = 0.0
    for size in _sizes(device):
        product_s = min(_products_s(size, dtype, time_s / len(_SIZES), device))
        best = max(best, 2 * size**3 / product_s)
        if 8 * product_s > time_s:
            break
    return best


def _products_s(size: int, dtype: str, time_s: float, device: str) -> list[float]:
    """Times of the products that `time_s` allows, at least one, after one that sets up threads and caches."""
    import torch

    left, right = (torch.randn(size, size, device=device).to(getattr(torch, DTYPES[dtype])) for _ in range(2))
    out = torch.mm(left, right)
    _wait(device)
    times_s: list[float] = []
    end_s = time.perf_counter() + time_s
    while not times_s or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        torch.mm(left, right, out=out)
        _wait(device)
        times_s.append(time.perf_counter() - begin_s)
    return times_s


def _wait(device: str) -> None:
    """Until a GPU has done what it was given; a CPU's products return when they are done."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
