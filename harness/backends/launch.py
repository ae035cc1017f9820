"""Binds a C++ kernel to its arguments: the cheapest call that Python can make."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.backends.base import Executor, Launch

if TYPE_CHECKING:
    from torch import Tensor


def bind_kernel(
    library: ctypes.CDLL, name: str, arguments: Iterable[Tensor | int | float | None], executor: Executor
) -> Launch:
    """A launch of the kernel `name` on the executor's pool.

    arguments are the kernel's, in its order and without the pool, which comes last: a tensor stands for its address, a
    float for a C double, None for a null pointer. They go into 8-byte slots once (kernels/cpu_launch.h), so that a
    launch passes one pointer: 0.2 us, where a call with twenty arguments takes 1 to 2 us.
    The launch keeps the tensors alive; nobody checks their shapes and types here.
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
