"""torch's matrix product, for any number of rows on any device."""

from __future__ import annotations

from torch import Tensor, addmm, mm
from torch.nn.functional import linear

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.registry import linear_backend
from harness.backends.weights import AsLoaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem

DTYPES = ("F32", "BF16", "F16")


@linear_backend("torch")
class TorchLinear(LinearBackend):
    """torch.mm into the output buffer: cuBLAS, rocBLAS or oneDNN."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        """Runs on the tensors' device; on a CPU on torch's own threads, not the executor's pool."""

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if problem.dtype not in DTYPES:
            return Support.no(f"torch has no product of {problem.dtype}", f"use one of {', '.join(DTYPES)}")
        return Support.yes()

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        return bind_product(x, packed, out)


def bind_product(x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
    """torch's product on these buffers."""
    weight, bias, transposed = packed.weight, packed.bias, packed.weight.t()

    if out.dtype != x.dtype:  # torch's products write x's type only

        def launch() -> None:
            out.copy_(linear(x, weight, bias))

    elif bias is None:

        def launch() -> None:
            mm(x, transposed, out=out)

    else:

        def launch() -> None:
            addmm(bias, x, transposed, out=out)

    return launch
