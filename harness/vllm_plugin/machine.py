"""Where vLLM's model lies in this process: its device, the threads that our kernels take there, and who counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from harness.backends.base import Executor
from harness.devices.cpu import detect_cpu
from harness.devices.gpu import detect_gpu
from harness.errors import UnavailableError
from harness.openmp_pool import OpenMpPool
from harness.vllm_plugin.counts import CardCounts, Counts, OpCounts


@dataclass(frozen=True)
class Machine:
    """One worker's."""

    executor: Executor
    """Without a stream: kernels run on the one that vLLM has set when it calls."""
    counts: Counts


def open_machine(device_type: str, report: Path | None) -> Machine:
    """device_type: vLLM's name. report: the folder of counters that others see. UnavailableError for a device that our
    kernels do not know."""
    if device_type == "cpu":
        return Machine(Executor(detect_cpu(), OpenMpPool(torch.get_num_threads())), OpCounts(report))
    if device_type == "cuda":  # ROCm and DCU as well
        device = torch.device("cuda", torch.cuda.current_device())
        return Machine(Executor(detect_gpu(device)), CardCounts(report, device))
    raise UnavailableError(
        f"the plugin knows CPUs and GPUs that torch calls cuda, not {device_type}", "unset HARNESS_SELECTION"
    )
