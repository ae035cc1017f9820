"""Loads kernels/<op>/reference.py: what a kernel computes, in float64 and as plainly as can be."""

import importlib.util
from functools import cache
from types import ModuleType

from harness.kernel_build import kernel_source


@cache
def kernel_reference(op: str) -> ModuleType:
    """The module, under a private name: `kernels` is another project's package. UnavailableError without one."""
    spec = importlib.util.spec_from_file_location(f"_kernel_reference_{op}", kernel_source(op, "reference.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
