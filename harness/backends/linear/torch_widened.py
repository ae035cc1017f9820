"""torch's product in fp32 of weights in bf16 or fp16, for CPUs that can't multiply those."""

from __future__ import annotations

from torch import Tensor

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.linear.onednn import multiplies
from harness.backends.registry import linear_backend
from harness.backends.scratch import Scratch
from harness.backends.weights import AsLoaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem

BLOCK_ROWS = 512
"""Rows of the weight that are widened at a time: with some thousand columns they stay in the second or third level
cache between their conversion and the product."""
DTYPES = ("BF16", "F16")


@linear_backend("torch-widened")
class TorchWidened(LinearBackend):
    """torch.mm in fp32 of a weight that is widened block by block, where the CPU has no arithmetic of its type."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        """Runs on torch's own threads. The scratch holds a block in fp32."""
        self.scratch = Scratch()

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if device.kind != "cpu":
            return Support.no(f"it is for CPUs, the device is {device.kind}", "use torch")
        if problem.m == 1:
            return Support.no("for one row it costs more to widen a weight than to multiply it", "use torch-mv")
        if problem.dtype not in DTYPES:
            return Support.no(f"{problem.dtype} is not widened", f"use torch; this takes {', '.join(DTYPES)}")
        if multiplies(problem.dtype):
            return Support.no(f"this CPU multiplies {problem.dtype} itself", "use torch")
        return Support.yes()

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        weight, bias, (n, k) = packed.weight, packed.bias, packed.weight.shape
        block = self.scratch.floats(BLOCK_ROWS * k)[: BLOCK_ROWS * k].view(BLOCK_ROWS, k)
        parts = [slice(begin, min(begin + BLOCK_ROWS, n)) for begin in range(0, n, BLOCK_ROWS)]

        def launch() -> None:
            rows = x.float()
            for part in parts:
                wide = block[: part.stop - part.start].copy_(weight[part])
                product = rows @ wide.t()
                out[:, part] = product if bias is None else product.add_(bias[part])

        return launch
