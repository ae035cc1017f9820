"""Where a gpu.cu runs in a test: on the host, lane by lane, or on a card. Tests hand over numpy arrays either way."""

import ctypes
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from compilers import command_for
from native_calls import Guarded, Kernels

from harness.gpu_build import load_gpu_kernel
from harness.kernel_build import kernel_source


class HostDevice:
    """Lanes are fibres, in ascending or descending order, in waves of the given width. kernels: another folder of them
    than ours."""

    def __init__(self, wave: int, *, reverse: bool, kernels: "Path | None" = None) -> None:
        self.wave, self._reverse, self._kernels = wave, reverse, kernels

    def load(self, op: str) -> ctypes.CDLL:
        source = kernel_source(op, "gpu.cu") if self._kernels is None else self._kernels / op / "gpu.cu"
        return load_gpu_kernel(source, "host")

    def __call__(self, op: str, name: str, *arguments: "np.ndarray | Guarded | int | float | None") -> int:
        """The kernel's result, 0 where all went well; a stream is added to its arguments."""
        library = self.load(op)
        library.gpu_host_reverse(self._reverse)
        return Kernels(library)(name, *arguments, 0)


class CardDevice:
    """Arrays are copied to the card before a call, and those that are guarded back after it, guards and all."""

    def __init__(self) -> None:
        import torch

        properties = torch.cuda.get_device_properties(0)
        self.wave = properties.warp_size
        is_hip = torch.version.hip is not None
        self.target = properties.gcnArchName if is_hip else f"sm_{properties.major}{properties.minor}"

    def load(self, op: str) -> ctypes.CDLL:
        return load_gpu_kernel(kernel_source(op, "gpu.cu"), self.target)

    def __call__(self, op: str, name: str, *arguments: "np.ndarray | Guarded | int | float | None") -> int:
        import torch

        copies = [_on_card(argument) for argument in arguments]
        addresses = [copy if not isinstance(copy, tuple) else copy[1] for copy in copies]
        result = Kernels(self.load(op))(name, *addresses, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        for argument, copy in zip(arguments, copies, strict=True):
            if isinstance(argument, Guarded):
                argument.all.view(np.uint8)[...] = copy[0].cpu().numpy()
        return result


def card_device() -> CardDevice:
    """The card that torch sees; without one, or without its compiler, the test is skipped."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            card = CardDevice()
            command_for(card.target)
            return card
    pytest.skip("no GPU that torch sees")


def _on_card(argument):
    """(bytes on the card, address of the first value), as far off a multiple of 16 as it lies here; else as it is."""
    import torch

    if not isinstance(argument, Guarded | np.ndarray):
        return argument
    if isinstance(argument, Guarded):
        whole, values = argument.all, argument.values
    else:  # a view is copied with all that it is one of
        whole, values = argument if argument.flags.c_contiguous else argument.base, argument
    data = np.frombuffer(np.ascontiguousarray(whole).tobytes(), dtype=np.uint8)
    offset = whole.ctypes.data % 16
    copy = torch.empty(len(data) + offset, dtype=torch.uint8, device="cuda")[offset:]
    copy.copy_(torch.from_numpy(data.copy()))
    return copy, copy.data_ptr() + values.ctypes.data - whole.ctypes.data
