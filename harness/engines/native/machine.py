"""What a native run or an A/B works on: a torch device, threads or a stream, and the probe of its memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.backends.base import OwnExecutor
from harness.cpu_pool import CpuPool, physical_cores
from harness.devices.cpu import available_memory_bytes, detect_cpu
from harness.devices.gpu import detect_gpu
from harness.errors import ConfigError, UnavailableError
from harness.kernel_build import find_compiler
from harness.probe.base import Probe
from harness.probe.memory import open_cpu_probe, open_gpu_probe
from harness.specs.device import DeviceInfo
from harness.specs.run import ProbeConfig


def torch_device(name: str) -> torch.device:
    """auto, cpu or cuda; auto takes a GPU where torch sees one. ConfigError for another name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"the device is {name!r}", "allowed: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("torch sees no GPU", "take the device cpu, or install a torch that knows the GPU")
    return torch.device(name)


def open_executor(device: torch.device, threads: int | None) -> OwnExecutor:
    """Threads on a CPU, a stream on a GPU; launches go there. The caller closes it."""
    if device.type == "cpu":
        return OwnExecutor(detect_cpu(), _open_pool(threads))
    return OwnExecutor(detect_gpu(device), stream=torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def open_probe(config: ProbeConfig, executor: OwnExecutor, tell: Callable[[str], None]) -> Probe | None:
    """Null where the card's compiler is not here: verdicts then say `no-roof`, and `tell` hears why."""
    if executor.stream is None:
        return open_cpu_probe(config, executor.pool, executor.device)
    try:
        return open_gpu_probe(config, executor.device, executor.stream)
    except UnavailableError as error:
        tell(f"no probe, so no roof: {error.what} ({error.mend})")
        return None


def free_memory_bytes(device: DeviceInfo) -> int | None:
    """What operands and weights may take; of a card that is not here all that it has, where that is known."""
    if device.kind == "cpu":
        return available_memory_bytes()
    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else device.memory_bytes


def _open_pool(threads: int | None) -> CpuPool | None:
    """Threads on physical cores; None without a compiler, when torch's own threads do all the work.

    torch starts its threads here, before anything is pinned: a thread inherits the mask of the one that makes it.
    """
    cores = physical_cores()
    if threads is not None and threads > len(cores):
        raise ConfigError(f"threads is {threads}, this process may use {len(cores)} cores", "lower it")
    torch.set_num_threads(threads or len(cores))
    warm = torch.ones(512, 512)
    warm @ warm
    try:
        find_compiler()
    except UnavailableError:
        return None
    return CpuPool(cores[:threads])
