"""`harness probe`: the survey of this machine's memory, by itself."""

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack, closing

from harness.cpu_pool import CpuPool, physical_cores
from harness.devices.cpu import detect_cpu
from harness.errors import ConfigError, UnavailableError
from harness.exclusive import measuring
from harness.probe.base import Probe
from harness.probe.memory import open_cpu_probe, open_gpu_probe
from harness.specs.probe import ProbeReport
from harness.specs.run import ProbeConfig


def probe_this_machine(device: str, threads: int | None, tell: Callable[[str], None]) -> ProbeReport:
    """Survey of `auto` (a GPU where torch sees one), `cpu` or `cuda`; on a CPU with so many threads, by default one for
    each physical core."""
    on_gpu = _is_gpu(device)
    if on_gpu and threads is not None:
        raise ConfigError(f"--threads {threads}: threads are a CPU's", "leave it out, or add --device cpu")
    with ExitStack() as stack:
        probe = _gpu_probe(device, stack) if on_gpu else _cpu_probe(threads, tell, stack)
        stack.enter_context(measuring(tell))
        return stack.enter_context(closing(probe)).survey(None)


def _is_gpu(device: str) -> bool:
    """Without torch no GPU is seen, and a CPU needs none."""
    if device == "cpu" or (device == "auto" and importlib.util.find_spec("torch") is None):
        return False
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError(f"the device is {device!r}, and torch is not installed", "install torch, or take cpu")
    from harness.engines.native.machine import torch_device

    return torch_device(device).type != "cpu"


def _gpu_probe(device: str, stack: ExitStack) -> Probe:
    from harness.engines.native.machine import open_executor, torch_device

    executor = stack.enter_context(closing(open_executor(torch_device(device), None)))
    return open_gpu_probe(ProbeConfig(), executor.device, executor.stream)


def _cpu_probe(threads: int | None, tell: Callable[[str], None], stack: ExitStack) -> Probe:
    cores = physical_cores()
    if threads is not None and threads > len(cores):
        raise ConfigError(f"--threads {threads}: this process may use {len(cores)} cores", "lower it")
    try:
        pool = stack.enter_context(closing(CpuPool(cores[:threads])))
    except UnavailableError as fault:
        tell(f"no thread pool ({fault.what}): the probe is a torch reduction")
        return open_cpu_probe(ProbeConfig(), None, detect_cpu())
    return open_cpu_probe(ProbeConfig(), pool, detect_cpu())
