"""Which implementation a run takes."""

from __future__ import annotations

from harness.backends.base import Executor
from harness.backends.launch import cpu_kernel_support, triton_support
from harness.engines.native.elementwise.base import Elementwise
from harness.engines.native.elementwise.cpu_kernels import CpuElementwise
from harness.engines.native.elementwise.torch_ops import TorchElementwise
from harness.engines.native.elementwise.triton_kernels import TritonElementwise
from harness.errors import ConfigError, UnavailableError


def choose_elementwise(requested: str, executor: Executor, dtype: str) -> Elementwise:
    """torch, cpu, triton, or for `auto` cpu where its kernels can be built for this type and device, else torch.

    Raises ConfigError for another name, UnavailableError where cpu or triton is asked for and can't be had.
    """
    if requested not in ("auto", "torch", "cpu", "triton"):
        raise ConfigError(f"engine.elementwise is {requested!r}", "allowed: auto, torch, cpu, triton")
    find_support = triton_support if requested == "triton" else cpu_kernel_support
    support = find_support(dtype, executor.device)
    if requested == "torch" or (requested == "auto" and not support.ok):
        return TorchElementwise()
    if not support.ok:
        raise UnavailableError(f"engine.elementwise is {requested}, but {support.why}", support.mend)
    return TritonElementwise() if requested == "triton" else CpuElementwise(executor)
