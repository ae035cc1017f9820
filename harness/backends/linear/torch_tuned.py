"""torch's product under TunableOp: torch tries its libraries' kernels on each shape once and keeps the fastest.

A layer is tuned while it is bound, on the buffers and the stream of its launches; no launch tunes. TunableOp is a
switch of the whole process, so it is on inside this backend's calls alone: `torch` beside it stays what it is. The two
switches cost a launch some Python; a captured graph holds the kernel alone. Results go to torch's own file
(PYTORCH_TUNABLEOP_FILENAME, else tunableop_results<ordinal>.csv in the working directory), and other programs read
them there: vLLM with PYTORCH_TUNABLEOP_ENABLED=1 PYTORCH_TUNABLEOP_TUNING=0.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.cuda import tunable

from harness.backends.base import Executor, Launch, LinearBackend, Support
from harness.backends.linear.torch_linear import TorchLinear, bind_product
from harness.backends.registry import linear_backend
from harness.backends.weights import AsLoaded, dtype_name
from harness.errors import ConfigError
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem
from harness.tunableop import (
    FILENAME,
    Result,
    differences,
    measured,
    mend_line_ends,
    read_tunings,
    results_path,
    write_tunings,
)

KINDS = ("rocm", "dcu")
"""On CUDA it knows cuBLAS's default alone: `torch` by another name, which would only share its place in an A/B."""
ENABLED = "PYTORCH_TUNABLEOP_ENABLED"
TYPE_NAMES = {"BF16": "BFloat16", "F16": "Half", "F32": "float"}
"""As TunableOp names them."""


@linear_backend("torch-tuned")
class TorchTuned(LinearBackend):
    """torch.mm by the library kernel that TunableOp finds the fastest: rocBLAS's and hipBLASLt's on ROCm and DCU."""

    contest_legal = True
    note = ""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._path: Path | None = None
        self._mended = ""
        self._known: set[tuple[object, ...]] = set()

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support:
        if device.kind not in KINDS:
            return Support.no(f"TunableOp tunes AMD's libraries, the device is {device.kind}", "use torch")
        if os.environ.get(ENABLED) == "1":
            return Support.no(f"{ENABLED}=1 tunes all of torch, so `torch` would be the same", f"unset {ENABLED}")
        return TorchLinear.supports(problem, device)

    def bind(self, x: Tensor, packed: AsLoaded, out: Tensor) -> Launch:
        """Tunes the product unless it is known; what was in `out` is lost. ConfigError for a results file that torch
        would ignore."""
        product = bind_product(x, packed, out)

        def launch() -> None:
            tunable.enable(True)
            try:
                product()
            finally:
                tunable.enable(False)

        problem = (*x.shape, *packed.weight.shape, packed.bias is None, x.dtype, out.dtype)
        if problem not in self._known:  # a guest in somebody's step binds anew at each call
            with torch.inference_mode(), torch.cuda.stream(self._executor.stream):
                self._path = self._path or self._opened(launch)
                self._tune(launch, self._path)
            self.note = self._mended + _note(x, packed, _results())
            self._known.add(problem)
        return launch

    def _opened(self, launch: Launch) -> Path:
        """The results file, read by torch. Some versions know their validators only after a first product."""
        path = results_path(os.environ, torch.cuda.current_device())
        tunings = read_tunings(path) if path.exists() else None
        if tunings is not None and tunings.has_crlf:
            mend_line_ends(path)
            self._mended = f"{path} had CRLF line ends, with which torch ignores it: mended; "
        tunable.set_filename(str(path))
        tunable.tuning_enable(False)
        launch()
        if tunings is not None and (tunings.validators or tunings.results):
            _check(path, differences(tunings.validators, _validators()))
        return path

    def _tune(self, launch: Launch, path: Path) -> None:
        """Once for each shape; after it nothing tunes, and what tuning took of memory is given back."""
        before = _results()
        tunable.tuning_enable(True)
        try:
            launch()
        finally:
            tunable.tuning_enable(False)
        found = _results()
        if found != before:
            write_tunings(path, _validators(), found)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def _check(path: Path, foreign: list[str]) -> None:
    if foreign:
        raise ConfigError(
            f"{path} was tuned elsewhere, so torch ignores it: {'; '.join(foreign)}",
            f"remove it to tune anew, or name another file by {FILENAME}",
        )
    if not tunable.read_file(str(path)):
        raise ConfigError(f"torch does not take {path}", f"name another file by {FILENAME}")


def _validators() -> dict[str, str]:
    """Of this torch, its libraries and this card."""
    known: Any = tunable.get_validators()  # pairs, where torch's annotation has one
    return dict(known)


def _results() -> tuple[Result, ...]:
    """What torch knows in this process, read and tuned."""
    known: Any = tunable.get_results()  # several, where torch's annotation has one
    results = (Result(op, shape, name, measured(time_ms / 1e3)) for op, shape, name, time_ms in known)
    return tuple(sorted(results, key=lambda one: (one.operation, one.parameters)))  # torch's order is a hash table's


def _note(x: Tensor, packed: AsLoaded, known: tuple[Result, ...]) -> str:
    """The kernels for this product, by its shape: torch's columns are BLAS's rows."""
    (n, k), m = packed.weight.shape, x.shape[0]
    wanted = [str(n), str(m), str(k)]
    chosen = [
        one.solution
        for one in known
        if one.parameters.split("_")[1:4] == wanted and TYPE_NAMES[dtype_name(x)] in one.operation.split("_")
    ]
    return ", ".join(dict.fromkeys(chosen)) or "nothing tuned: torch's default"
