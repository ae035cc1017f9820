"""torch's matrix product, for any number of rows on any device."""

from __future__ import annotations

from torch import Tensor, addmm, mm
from torch.nn.functional import linear

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.registry import linear_backend
from harness.backends.weights import AsLoaded, as_loaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem

DTYPES = ("F32", "BF16", "F16")


@linear_backend("torch")
class TorchLinear(LinearBackend):
    """torch.mm into the output buffer: cuBLAS, rocBLAS or oneDNN."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        """Runs on the tensors' device; on a CPU on torch's own threads, which the executor's pool knows nothing of."""

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if problem.dtype not in DTYPES:
            return Support.no(f"torch has no product of {problem.dtype}", f"use one of {', '.join(DTYPES)}")
        return Support.yes()

    def prepare(self, weight: Tensor, bias: Tensor | None, problem: LinearProblem) -> AsLoaded:
        return as_loaded(weight, bias, problem)

    def read_bytes(self, packed: AsLoaded, m: int) -> int:
        return packed.num_bytes

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        weight, bias = packed.weight, packed.bias
        if out.dtype != x.dtype:
            return lambda: out.copy_(linear(x, weight, bias)) and None
        transposed = weight.t()
        if bias is None:
            return lambda: mm(x, transposed, out=out) and None
        return lambda: addmm(bias, x, transposed, out=out) and None
