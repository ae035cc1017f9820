"""Loads kernels/<op>/triton_kernel.py: sources that Triton compiles for whatever card is here.

kernels/ is data and no package, so a file is loaded by its path and under a private name, once a process. Each has
`Config` (a frozen dataclass), `CONFIGS` (the op's declared tuning space) and one bind function an operation, which
takes tensors and a Config and returns a launch without arguments. Binding compiles nothing: the first launch does, so
whoever times a launch has made one before.

TRITON_INTERPRET=1 runs kernels on the CPU, for tests; Triton reads it while it is imported, so it has to be in the
environment before.
"""

import functools
import importlib
import importlib.util
from types import ModuleType

from harness.errors import UnavailableError
from harness.kernel_build import kernel_source


@functools.cache
def load_triton(op: str) -> ModuleType:
    """The module of kernels/<op>/triton_kernel.py.

    Raises UnavailableError where Triton or torch is missing, or there is no such kernel.
    """
    source = kernel_source(op, "triton_kernel.py")
    for package in ("triton", "torch"):
        _require(package)
    # Triton finds a kernel's source through linecache, by the file that the spec names.
    spec = importlib.util.spec_from_file_location(f"_triton_kernel_{op}", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UnavailableError(
            f"Triton kernels can't be loaded: {error}",
            f"pip install {package}; a vendor's container has its own build, which must stay",
        ) from error
