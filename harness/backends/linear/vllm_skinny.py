"""vLLM's product of few rows for AMD's data center cards (csrc/rocm/skinny_gemms.cu), as vLLM itself calls it.

vLLM's other kernel of that file, LLMM1, serves what this one does not take (at most 8 features), and sums in the
type of its inputs: it is left out.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from torch import Tensor

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.library import load_library
from harness.backends.registry import linear_backend
from harness.backends.weights import AsLoaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem

ARCHS = ("gfx90a", "gfx942", "gfx950")
"""On other cards the kernel of older versions ends the process by an assertion; newer ones know RDNA as well."""
DTYPES = ("BF16", "F16")
MAX_ROWS = 4
"""5 in newer versions of vLLM."""
MIN_FEATURES = 9
K_MULTIPLE = 8


@linear_backend("vllm-skinny")
class VllmSkinny(LinearBackend):
    """vLLM's wvSplitK for up to 4 rows on gfx90a, gfx942 and gfx950; its copy into the output is part of it."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        self._num_compute_units = executor.device.num_compute_units
        self._product = load_library("vllm._custom_ops").wvSplitK

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        return _card_support(device) if (refusal := _refusal(problem)) is None else refusal

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        """vLLM's operator makes its own output: copying that is part of a launch, as it is not in vLLM."""
        product, weight, units = self._product, packed.weight, self._num_compute_units
        bias = () if packed.bias is None else (packed.bias,)  # older versions take no bias

        def launch() -> None:
            out.copy_(product(weight, x.contiguous(), units, *bias))  # the kernel reads rows one behind the other

        return launch


def _refusal(problem: LinearProblem) -> Support | None:
    """Why it is no problem for this kernel on any card."""
    mend = "use torch"
    if problem.dtype not in DTYPES:
        return Support.no(f"vLLM has no such kernel for {problem.dtype}", f"use one of {', '.join(DTYPES)}")
    if problem.m > MAX_ROWS:
        return Support.no(f"{problem.m} rows are more than {MAX_ROWS}", mend)
    if problem.n < MIN_FEATURES:
        return Support.no(f"{problem.n} features are fewer than {MIN_FEATURES}", mend)
    if problem.k % K_MULTIPLE:
        return Support.no(f"{problem.k} inputs are no multiple of {K_MULTIPLE}", mend)
    return None


def _card_support(device: DeviceInfo) -> Support:
    if device.kind != "rocm":
        return Support.no(f"it is a kernel for AMD's cards, the device is {device.kind}", "use torch")
    if device.arch not in ARCHS:
        return Support.no(f"it knows {', '.join(ARCHS)}, the card is {device.arch}", "use torch, or gpu-gemv")
    found = importlib.util.find_spec("vllm")
    if found is None:
        return Support.no("vllm is not installed", "run in a container that has vLLM for ROCm")
    # Looked for as a file: importing vLLM to ask it takes seconds.
    if not any(list(Path(place).glob("_rocm_C*")) for place in found.submodule_search_locations or ()):
        return Support.no("this vLLM was built without its ROCm operators", "run in a container that has vLLM for ROCm")
    return Support.yes()
