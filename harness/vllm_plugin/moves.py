"""Launches that were bound once, moved to where vLLM's tensors lie at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.backends.launch import GpuLaunch, KernelLaunch

Move = Callable[..., None]
"""Launches with these tensors in the places of those it was bound with."""


def mover(launch: Any, *tensors: Tensor) -> Move | None:
    """None for a launch that has to be bound anew: torch's, a library's, Triton's."""
    if isinstance(launch, KernelLaunch):
        on_cpu = launch.mover(*tensors)
        return lambda *others: on_cpu(*(tensor.data_ptr() for tensor in others))
    if isinstance(launch, GpuLaunch):
        on_gpu = launch.mover(*tensors)
        return lambda *others: on_gpu(*(tensor.data_ptr() for tensor in others), _stream(others[0]))
    return None


def _stream(tensor: Tensor) -> int:
    """vLLM's, which is another one while it captures a graph."""
    return int(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0
