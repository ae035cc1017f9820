"""torch's matrix-vector product: what a single-request decode step asks for, under its own name."""

from __future__ import annotations

from torch import Tensor, addmv, mv

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.linear.torch_linear import TorchLinear
from harness.backends.registry import linear_backend
from harness.backends.weights import AsLoaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem


@linear_backend("torch-mv")
class TorchMv(LinearBackend):
    """torch.mv, one row only: a library's vector kernel, to compare with its matrix kernel (`torch`)."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        """Runs on the tensors' device; on a CPU on torch's own threads."""

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if problem.m != 1:
            return Support.no(f"a matrix-vector product has one row, not {problem.m}", "use torch")
        return TorchLinear.supports(problem, device)

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        weight, bias, x_row, out_row = packed.weight, packed.bias, x[0], out[0]

        if out.dtype != x.dtype:  # torch's products write x's type only

            def launch() -> None:
                out_row.copy_(mv(weight, x_row) if bias is None else addmv(bias, weight, x_row))

        elif bias is None:

            def launch() -> None:
                mv(weight, x_row, out=out_row)

        else:

            def launch() -> None:
                addmv(bias, weight, x_row, out=out_row)

        return launch
