"""Binds a kernel to its arguments: the cheapest call that Python can make."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from harness.backends.base import Executor, Support
from harness.errors import UnavailableError
from harness.gpu_build import compile_command
from harness.kernel_build import find_compiler
from harness.specs.device import DeviceInfo

if TYPE_CHECKING:
    from torch import Tensor

KERNEL_DTYPES = {"BF16": "bf16", "F32": "f32"}
"""The types that our CPU kernels exist for, with the suffix of their names."""
GPU_KERNEL_DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
"""The same of gpu.cu and Triton kernels."""
GPU_KINDS = ("cuda", "rocm", "dcu")


def whole_lines(count: int) -> int:
    """Rounded up to a cache line of bf16: the width of a row that a CPU kernel keeps in its scratch memory."""
    return -(-count // 32) * 32


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


def gpu_kernel_support(dtype: str, device: DeviceInfo) -> Support:
    """Whether a gpu.cu of this type can be built and run here."""
    if device.kind not in GPU_KINDS:
        return Support.no(f"it is a GPU kernel, the device is {device.kind}", "use a CPU backend")
    if dtype not in GPU_KERNEL_DTYPES:
        return Support.no(f"there is no GPU kernel for {dtype}", f"use one of {', '.join(GPU_KERNEL_DTYPES)}")
    try:
        compile_command(device.arch or "")
    except UnavailableError as error:
        return Support.no(error.what, error.mend)
    return Support.yes()


def triton_support(dtype: str, device: DeviceInfo) -> Support:
    """Whether Triton can be asked for a kernel of this type here; TRITON_INTERPRET=1 runs it on a CPU, for tests."""
    if device.kind not in GPU_KINDS and os.environ.get("TRITON_INTERPRET") != "1":
        return Support.no(f"it is a Triton kernel, the device is {device.kind}", "use a CPU backend")
    if dtype not in GPU_KERNEL_DTYPES:
        return Support.no(f"there is no Triton kernel for {dtype}", f"use one of {', '.join(GPU_KERNEL_DTYPES)}")
    if importlib.util.find_spec("triton") is None:
        return Support.no("triton is not installed", "pip install llm-decode-harness[triton]; a container has its own")
    return Support.yes()


class GpuLaunch:
    """A launch of a gpu.cu's kernel; UnavailableError says why the kernel or the runtime refused it. Who can't keep its
    buffers moves them, as with KernelLaunch."""

    def __init__(
        self, library: ctypes.CDLL, name: str, arguments: Iterable[Tensor | int | float | None], stream: int
    ) -> None:
        self._library, self._name, self._arguments = library, name, (*arguments, stream)
        self._slots = _slots(self._arguments)
        self._function = getattr(library, name)
        self._function.restype = ctypes.c_int

    def __call__(self) -> None:
        code = self._function(self._slots)
        if code:
            self._library.gpu_error_text.restype = ctypes.c_char_p
            reason = self._library.gpu_error_text(code).decode()
            raise UnavailableError(f"{self._name} was not launched: {reason}", "use another backend, or report it")

    def mover(self, *tensors: Tensor) -> Callable[..., None]:
        """As KernelLaunch.mover; behind the addresses comes the stream, since a graph is captured on one of its own.
        What is moved is not kept alive: it may be a server's whole cache."""
        places = [*(_place(self._arguments, tensor) for tensor in tensors), len(self._slots) - 1]
        self._kept = [argument for place, argument in enumerate(self._arguments) if place not in places]
        del self._arguments, self._slots.arguments  # type: ignore[attr-defined]

        def launch(*addresses: int) -> None:
            for place, address in zip(places, addresses, strict=True):
                self._slots[place] = address
            self()

        return launch


def bind_gpu_kernel(
    library: ctypes.CDLL, name: str, arguments: Iterable[Tensor | int | float | None], executor: Executor
) -> GpuLaunch:
    """A launch of a gpu.cu's kernel `name` on the executor's stream, which comes last among its arguments. As
    bind_kernel."""
    return GpuLaunch(library, name, arguments, 0 if executor.stream is None else int(executor.stream.cuda_stream))


class KernelLaunch(functools.partial[None]):
    """A launch of a CPU kernel, and the cheapest call that Python has. Who can't keep its buffers where they were bound
    moves them: 0.1 us, where binding anew takes 8."""

    def mover(self, *tensors: Tensor) -> Callable[..., None]:
        """Launches on other buffers of the shapes and strides of these, which it was bound with: takes the address of
        what stands for each. They must live until it returns."""
        slots = self.args[0]
        places = [_place(slots.arguments, tensor) for tensor in tensors]

        def launch(*addresses: int) -> None:
            for place, address in zip(places, addresses, strict=True):
                slots[place] = address
            self()

        return launch


def _place(arguments: tuple[Tensor | int | float | None, ...], tensor: Tensor) -> int:
    return next(place for place, argument in enumerate(arguments) if argument is tensor)


def bind_kernel(
    library: ctypes.CDLL, name: str, arguments: Iterable[Tensor | int | float | None], executor: Executor
) -> KernelLaunch:
    """A launch of the kernel `name` on the executor's pool.

    arguments are the kernel's, in its order and without the pool, which comes last: a tensor stands for its
    address, a float for a C double, None for a null pointer. They go into 8-byte slots once
    (kernels/slots.h), so that a launch passes one pointer: 0.2 us, where a call with twenty arguments
    takes 1 to 2 us. The launch keeps the tensors alive; their shapes and types are the caller's to check.
    """
    slots = _slots((*arguments, None if executor.pool is None else executor.pool.handle))
    function = getattr(library, name)
    function.restype = None
    return KernelLaunch(function, slots)


def _slots(arguments: tuple[Tensor | int | float | None, ...]) -> ctypes.Array[ctypes.c_uint64]:
    slots = (ctypes.c_uint64 * len(arguments))(*map(_slot, arguments))
    slots.arguments = arguments  # type: ignore[attr-defined]  # slots hold addresses only: this keeps the tensors
    return slots


def _slot(argument: Tensor | int | float | None) -> int:
    """The 8 bytes of one argument, as an unsigned integer."""
    if argument is None:
        return 0
    if isinstance(argument, float):
        return ctypes.c_uint64.from_buffer(ctypes.c_double(argument)).value
    return argument if isinstance(argument, int) else argument.data_ptr()
