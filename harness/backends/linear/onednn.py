"""oneDNN on a copy of the weight in the layout that it likes best: what libraries on CPUs do behind the scenes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.registry import linear_backend
from harness.backends.weights import as_loaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem

DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Packed:
    """weight is opaque, in oneDNN's layout; bias [n] or None is the caller's."""

    weight: Tensor
    bias: Tensor | None
    weight_bytes: int
    """Of the copy, filled up to whole blocks."""


@linear_backend("onednn")
class OneDnn(LinearBackend):
    """oneDNN's inner product on a re-laid-out copy of the weight, on torch's threads."""

    contest_legal = False

    def __init__(self, executor: Executor) -> None:
        """Runs on torch's own threads, not the executor's pool."""

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if device.kind != "cpu":
            return Support.no(f"it is a CPU product, the device is {device.kind}", "use torch")
        if problem.dtype not in DTYPES:
            return Support.no(f"oneDNN has no product of {problem.dtype}", f"use one of {', '.join(DTYPES)}")
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return Support.no("this build of torch has no oneDNN", "use torch")
        if not multiplies(problem.dtype):
            return Support.no(f"oneDNN multiplies {problem.dtype} on CPUs with instructions for it only", "use torch")
        return Support.yes()

    def prepare(self, weight: Tensor, bias: Tensor | None, problem: LinearProblem) -> Packed:
        """The layout is oneDNN's choice for problem.m rows: plain for one, blocks for more. Any number of rows runs on
        any layout; one that was chosen for others may be slower."""
        loaded = as_loaded(weight, bias, problem)
        copy = torch.ops.mkldnn._reorder_linear_weight(loaded.weight, problem.m)
        return Packed(copy, loaded.bias, torch.ops.mkldnn._nbytes(copy))

    def read_bytes(self, packed: Packed, m: int) -> int:
        return packed.weight_bytes + (0 if packed.bias is None else packed.bias.nbytes)

    def kept_bytes(self, packed: Packed) -> int:
        return packed.weight_bytes

    def bind(self, x: Tensor, packed: Packed, out: Tensor) -> Launch:
        """torch's operator makes its own output: copying that is part of a launch."""
        product, weight, bias = torch.ops.mkldnn._linear_pointwise.default, packed.weight, packed.bias

        def launch() -> None:
            out.copy_(product(x, weight, bias, "none", [], ""))

        return launch


def multiplies(dtype: str) -> bool:
    """Whether torch has oneDNN, without which these operators are missing, and that takes this type here: x86 needs
    AVX-512 or AVX-NE-CONVERT for the narrow ones."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == "BF16":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype != "F16" or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
