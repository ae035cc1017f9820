"""Our matrix-vector kernel for GPUs (kernels/gemv/gpu.cu): one source for CUDA, ROCm and DCU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.launch import GPU_KERNEL_DTYPES, GpuLaunch, bind_gpu_kernel, gpu_kernel_support
from harness.backends.registry import linear_backend
from harness.backends.scratch import Scratch
from harness.backends.weights import AsLoaded, dtype_name
from harness.gpu_build import load_gpu_kernel, wave_widths
from harness.kernel_build import kernel_source
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem, Parameters

MAX_ROWS = 8


@linear_backend("gpu-gemv")
class GpuGemv(LinearBackend):
    """CUDA/HIP kernel that reads the weight once, 128 bits a lane, for up to 8 rows."""

    contest_legal = True
    counts_calls = True

    def __init__(
        self, executor: Executor, rows_per_wave: int = 1, waves_per_block: int = 4, split_k: int = 1,
        double_buffer: int = 0,
    ) -> None:  # fmt: skip
        target = executor.device.arch or ""
        self._executor = executor
        self._library = load_gpu_kernel(kernel_source("gemv", "gpu.cu"), target)
        self._wave = executor.device.wave_width or wave_widths(target)[0]
        self._split_k, self.scratch = split_k, Scratch()
        self._tuned = (rows_per_wave, waves_per_block, split_k, double_buffer)

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if problem.m > MAX_ROWS:
            return Support.no(f"{problem.m} rows are more than {MAX_ROWS}", "use torch: a product of many rows")
        return gpu_kernel_support(problem.dtype, device)

    @staticmethod
    def tuning(problem: LinearProblem, device: DeviceInfo) -> Sequence[Parameters]:
        """Few rows of x leave registers for more rows of the weight; few rows of the weight want split columns."""
        rows = (1, 2, 4) if problem.m <= 4 else (1, 2)
        splits = (1, 4) if problem.n <= 4096 else (1,)
        return [
            {"rows_per_wave": r, "waves_per_block": waves, "split_k": split, "double_buffer": double}
            for r in rows
            for waves in (1, 4)
            for split in splits
            for double in (0, 1)
        ]

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        return self.bind_counted(x, packed, out, None)

    def bind_counted(self, x: Tensor, packed: AsLoaded, out: Tensor, calls: Tensor | None) -> GpuLaunch:
        (n, k), m = packed.weight.shape, x.shape[0]
        size = self._split_k * m * n
        partials = self.scratch.floats(size, x.device) if self._split_k > 1 else None
        kernel = f"gemv_{GPU_KERNEL_DTYPES[dtype_name(x)]}_{GPU_KERNEL_DTYPES[dtype_name(out)]}"
        sizes = (m, n, k, x.stride(0), out.stride(0), self._wave, *self._tuned, calls)
        tensors = (x, packed.weight, packed.bias, out, partials)
        return bind_gpu_kernel(self._library, kernel, (*tensors, *sizes), self._executor)
