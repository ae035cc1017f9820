"""The read probe in Triton (kernels/read_probe/triton_kernel.py), bound without memory.

No reader of ours launches it, a card's roof is gpu.cu's: its checks on a card do.
"""

from __future__ import annotations

from harness.backends.base import Launch
from harness.backends.triton import config_of
from harness.probe.memory import LEAST_GPU_BUFFER_BYTES
from harness.probe.reader import WORD_BYTES
from harness.specs.problem import Parameters
from harness.triton_kernels import load_triton

OP = "read_probe"
_WRITTEN_WORD = 0x0123456789ABCDEF


def probe_launches(parameters: Parameters) -> tuple[Launch, Launch, Launch]:
    """(read, copy of a half to the other, write) of a buffer as large as the survey's of a card usually is."""
    import torch

    kernels, config = load_triton(OP), config_of(OP, parameters)
    words = torch.empty(LEAST_GPU_BUFFER_BYTES // WORD_BYTES, dtype=torch.int64, device="meta")
    total = torch.empty(1, dtype=torch.int64, device="meta")
    return (
        kernels.bind_read(words, total, config),
        kernels.bind_copy(*words.chunk(2), config),
        kernels.bind_write(words, _WRITTEN_WORD, config),
    )
