"""Our matrix-vector kernel for CPUs (kernels/gemv): up to 8 rows of x against one read of the weight."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.launch import KERNEL_DTYPES, bind_kernel, cpu_kernel_support, whole_lines
from harness.backends.registry import linear_backend
from harness.backends.scratch import Scratch
from harness.backends.streams import DISTANCES, stream_space, streams_or_default
from harness.backends.weights import AsLoaded, dtype_name
from harness.kernel_build import kernel_source, load_kernel
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem, Parameters

MAX_ROWS = 8


@linear_backend("cpu-gemv")
class CpuGemv(LinearBackend):
    """C++ kernel that reads the weight once, as fast as memory gives it, for up to 8 rows."""

    contest_legal = True
    uses_pool = True

    def __init__(
        self, executor: Executor, num_streams: int | None = None, prefetch_bytes: int | None = None
    ) -> None:  # fmt: skip
        """The scratch holds x in the kernel's own form."""
        self._executor = executor
        self._streams = streams_or_default(executor.device, num_streams, prefetch_bytes)
        self._library = load_kernel(kernel_source("gemv"))
        self.scratch = Scratch()

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if problem.m > MAX_ROWS:
            return Support.no(f"{problem.m} rows are more than {MAX_ROWS}", "use torch: a product of many rows")
        return cpu_kernel_support(problem.dtype, device)

    @staticmethod
    def tuning(problem: LinearProblem, device: DeviceInfo) -> Sequence[Parameters]:
        if problem.m > 1 and problem.dtype == "BF16" and "amx_bf16" in device.features:
            return [{"prefetch_bytes": distance} for distance in DISTANCES]  # a tile's rows are sixteen streams
        return stream_space()

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        n, k = packed.weight.shape
        kernel = f"gemv_{_suffix(x)}_{_suffix(out)}"
        scratch = self.scratch.floats(x.shape[0] * whole_lines(k))
        sizes = (x.shape[0], n, k, x.stride(0), out.stride(0), *self._streams)
        tensors = (x, packed.weight, packed.bias, out, scratch)
        return bind_kernel(self._library, kernel, (*tensors, *sizes), self._executor)


def _suffix(tensor: Tensor) -> str:
    return KERNEL_DTYPES[dtype_name(tensor)]
