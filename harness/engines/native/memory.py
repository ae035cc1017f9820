"""Tensors on huge pages.

A decode step walks through gigabytes once; with 4 KiB pages the walk misses the TLB every 4 KiB and the page walker
competes with the very reads it serves. Where the kernel offers huge pages on request (`madvise`), ask.
"""

import mmap
from math import prod

import torch

HUGE_PAGE_BYTES = 2 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor; on a CPU and above one huge page in size, from an advised mapping of its own.

    The mapping lives as long as the tensor: torch keeps the buffer it was made from.
    """
    num_bytes = prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    # Mapped with room to start on a huge page: the first and last partial pages could not be huge.
    mapping = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes].view(dtype).view(shape)
