"""Loads the Triton kernels of kernels/<op>: sources that Triton compiles for whatever card is here.

kernels/ is data and no package of ours, so it is loaded as one of a private name, in which files of an op may import
from each other. Each op's triton_kernel.py has `Config` (a frozen dataclass) and `CONFIGS` (the op's declared tuning
space); it and files beside it have one bind function an operation, which takes tensors and a Config and returns a
launch without arguments. Binding compiles nothing: the first launch does, so whoever times a launch has made one
before.

TRITON_INTERPRET=1 runs kernels on the CPU, for tests; Triton reads it while it is imported, so it has to be in the
environment before.
"""

import importlib
import sys
from types import ModuleType

from harness.errors import UnavailableError
from harness.kernel_build import kernel_source
from harness.resources import kernels_dir

_PACKAGE = "_harness_kernels"


def load_triton(op: str, file: str = "triton_kernel.py") -> ModuleType:
    """The module of kernels/<op>/<file>, one a process.

    Raises UnavailableError where Triton or torch is missing, or there is no such kernel.
    """
    source = kernel_source(op, file)
    for package in ("triton", "torch"):
        _require(package)
    root = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    root.__path__ = [str(kernels_dir())]
    return importlib.import_module(f"{_PACKAGE}.{op}.{source.stem}")


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UnavailableError(
            f"Triton kernels can't be loaded: {error}",
            f"pip install {package}; a vendor's container has its own build, which must stay",
        ) from error
