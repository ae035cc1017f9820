"""Binds a C++ kernel to its arguments: the cheapest call that Python can make."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.backends.base import Executor, Launch, Support
from harness.errors import UnavailableError
from harness.kernel_build import find_compiler
from harness.specs.device import DeviceInfo

if TYPE_CHECKING:
    from torch import Tensor

KERNEL_DTYPES = {"BF16": "bf16", "F32": "f32"}
"""The types that our CPU kernels exist for, with the suffix of their names."""


def cpu_kernel_support(dtype: str, device: DeviceInfo) -> Support:
    """Whether a CPU kernel of this type can be built and run here."""
    if device.kind != "cpu":
        return Support.no(f"it is a CPU kernel, the device is {device.kind}", "use a torch backend")
    if dtype not in KERNEL_DTYPES:
        return Support.no(f"there is no CPU kernel for {dtype}", f"use one of {', '.join(KERNEL_DTYPES)}")
    try:
        find_compiler()
    except UnavailableError as error:
        return Support.no(error.what, error.mend)
    return Support.yes()


def bind_kernel(
    library: ctypes.CDLL, name: str, arguments: Iterable[Tensor | int | float | None], executor: Executor
) -> Launch:
    """A launch of the kernel `name` on the executor's pool.

    arguments are the kernel's, in its order and without the pool, which comes last: a tensor stands for its
    address, a float for a C double, None for a null pointer. They go into 8-byte slots once
    (kernels/slots.h), so that a launch passes one pointer: 0.2 us, where a call with twenty arguments
    takes 1 to 2 us. The launch keeps the tensors alive; their shapes and types are the caller's to check.
    """
    arguments = (*arguments, None if executor.pool is None else executor.pool.handle)
    slots = (ctypes.c_uint64 * len(arguments))(*map(_slot, arguments))
    slots.arguments = arguments  # type: ignore[attr-defined]  # slots hold addresses only: this keeps the tensors
    function = getattr(library, name)
    function.restype = None
    return functools.partial(function, slots)


def _slot(argument: Tensor | int | float | None) -> int:
    """The 8 bytes of one argument, as an unsigned integer."""
    if argument is None:
        return 0
    if isinstance(argument, float):
        return ctypes.c_uint64.from_buffer(ctypes.c_double(argument)).value
    return argument if isinstance(argument, int) else argument.data_ptr()
