"""Our matrix-vector kernel in Triton (kernels/gemv/triton_kernel.py), for whatever card Triton knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.launch import triton_support
from harness.backends.registry import linear_backend
from harness.backends.triton import config_of, declared
from harness.backends.weights import AsLoaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem, Parameters
from harness.triton_kernels import load_triton

MAX_ROWS = 8
MIN_LANES = 32


@linear_backend("triton-gemv")
class TritonGemv(LinearBackend):
    """Triton kernel that streams the weight once for up to 8 rows, without matrix cores."""

    contest_legal = True
    counts_calls = True
    compiles_at_launch = True

    def __init__(self, executor: Executor, **parameters: int | str) -> None:
        self._config = config_of("gemv", parameters)

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if problem.m > MAX_ROWS:
            return Support.no(f"{problem.m} rows are more than {MAX_ROWS}", "use torch: a product of many rows")
        return triton_support(problem.dtype, device)

    @staticmethod
    def tuning(problem: LinearProblem, device: DeviceInfo) -> Sequence[Parameters]:
        """Those that keep their sums in registers; of a card that does not say how wide its waves are, narrow ones."""
        if not triton_support(problem.dtype, device).ok:
            return ()
        return declared("gemv", lambda config: config.fits(problem.m, device.wave_width or MIN_LANES))

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        """Counted by nobody, but by the same kernel: it was compiled, and timed, for all."""
        return self.bind_counted(x, packed, out, torch.zeros((), dtype=torch.int64, device=x.device))

    def bind_counted(self, x: Tensor, packed: AsLoaded, out: Tensor, calls: Tensor) -> Launch:
        launch: Launch = load_triton("gemv").bind_gemv(x, packed.weight, packed.bias, out, self._config, calls)
        return launch
