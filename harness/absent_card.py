"""Compiles Triton kernels for a card that need not be here, into Triton's own cache, where a launch on it finds them.

What is compiled depends on more than the source: on types, on which sizes and addresses are multiples of 16, on which
sizes are 1. So nothing of that is imitated: the very launch is made, on a stand-in for the card's driver, which answers
what Triton asks before it compiles and runs nothing afterwards.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UnavailableError
from harness.gpu_build import HOST, MOST_THREADS, most_shared_bytes, platform_of, wave_widths

_BINARIES = (".cubin", ".hsaco")


@dataclass(frozen=True)
class Compiled:
    """One kernel as one launch needs it."""

    is_new: bool
    """Compiled just now; else Triton's cache had it."""
    num_bytes: int
    """Of the binary."""
    shared_bytes: int
    """Shared memory of a block."""


@dataclass(frozen=True)
class Excess:
    """What a launch asks of the card beyond what there is: it can't be made there."""

    of: str
    """shared memory, threads, ..."""
    wanted: int
    """Bytes of shared memory, or a number."""
    limit: int


def excess_of(fault: Exception) -> Excess | None:
    """Of a launch that Triton refused for what its block takes; null for any other fault."""
    from triton.runtime.errors import OutOfResources

    return Excess(fault.name, fault.required, fault.limit) if isinstance(fault, OutOfResources) else None


class _AbsentCard:
    """What Triton asks of the active driver. Each is a device of its own: none knows kernels of the one before."""

    def __init__(self, target: Any, shared_bytes: int | None) -> None:
        self._target = target
        self._shared_bytes = sys.maxsize if shared_bytes is None else shared_bytes
        self.utils = self

    def get_current_device(self) -> "_AbsentCard":
        return self

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target

    def get_device_properties(self, device: Any) -> dict[str, int]:
        return {"max_shared_mem": self._shared_bytes}

    def load_binary(self, name: str, binary: bytes, shared_bytes: int, device: Any) -> tuple[None, None, int, int, int]:
        """(module, function, registers, spills, most threads): nothing is loaded, so nothing will be unloaded."""
        return None, None, 0, 0, MOST_THREADS

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: None


@contextlib.contextmanager
def compiling_for(target: str) -> Iterator[list[Compiled]]:
    """While it lasts, Triton's launches compile for `sm_90`, `gfx90a`, ... and run nothing; gives what they needed.

    A launch whose block takes more than such a card has raises what it would raise there (`excess_of`). Raises
    UnavailableError without a Triton that can tell, and for a target that it has no code for.
    """
    try:
        import torch  # noqa: F401 - Triton takes its tensors
        from triton import knobs
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver
    except ImportError as error:
        mend = "pip install llm-decode-harness[triton]; a container's own build compiles at first launches"
        raise UnavailableError(f"Triton can't compile ahead here: {error}", mend) from None
    if knobs.runtime.interpret:
        raise UnavailableError("Triton's interpreter compiles nothing", "unset TRITON_INTERPRET")
    found: list[Compiled] = []

    def heard(*, metadata: Mapping[str, Any], metadata_group: Mapping[str, str], cache_hit: bool, **_: Any) -> None:
        binaries = (Path(path) for path in metadata_group.values() if path.endswith(_BINARIES))
        found.append(Compiled(not cache_hit, sum(path.stat().st_size for path in binaries), metadata["shared"]))

    with knobs.compilation.scope():
        knobs.compilation.listener = heard
        driver.set_active(_AbsentCard(GPUTarget(*_triton_target(target)), most_shared_bytes(target)))
        try:
            yield found
        finally:
            driver.set_active(None)  # whoever asks next gets the card that is here


def _triton_target(target: str) -> tuple[str, int | str, int]:
    """(backend, architecture, wave width) as the driver of such a card says it."""
    platform, arch = platform_of(target), target.partition(":")[0]
    if platform == HOST:
        raise UnavailableError("Triton has no code for a CPU", "name an architecture such as sm_90 or gfx90a")
    width = wave_widths(target)[0]
    return ("cuda", int(arch.removeprefix("sm_").rstrip("af")), width) if platform == "cuda" else ("hip", arch, width)
