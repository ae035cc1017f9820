"""The same tests twice: by Triton's interpreter on the CPU (TRITON_INTERPRET=1 in the environment), or on a card.

Triton reads the variable while it is imported, and its interpreter and its compiler can't share a process: so `make
test WITH=triton` runs this folder a second time, alone.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _why_skipped() -> str | None:
    missing = [package for package in ("torch", "triton") if importlib.util.find_spec(package) is None]
    if missing:
        return f"no {' and no '.join(missing)} here"
    if INTERPRETED:
        return None
    import torch

    return None if torch.cuda.is_available() else "no card here, and TRITON_INTERPRET is not 1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = _why_skipped()
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            if not INTERPRETED:
                item.add_marker(pytest.mark.card)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def _bf16_of_the_interpreter() -> Iterator[None]:
    """As on a card. Triton 3.9's interpreter keeps bf16 as the integers of its bits: its tl.dot multiplies those, and
    `.to(tl.bfloat16)` cuts them off. What a kernel asks to be cut off (fp_downcast_rounding) still is."""
    if not INTERPRETED or _why_skipped():
        yield
        return
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    builder, widen = interpreter.InterpreterBuilder, interpreter._convert_float
    dot, cast = builder.create_dot, builder.cast_impl

    def values(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle(widen(handle.data, tl.bfloat16, tl.float32, None).view(np.float32), tl.float32)

    def rounded(self, handle, kind):
        if (handle.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, handle, kind)
        nearest = torch.from_numpy(np.ascontiguousarray(handle.data)).to(torch.bfloat16)
        return interpreter.TensorHandle(nearest.view(torch.uint16).numpy(), tl.bfloat16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_dot", lambda self, a, b, *rest: dot(self, values(a), values(b), *rest))
        patch.setattr(builder, "cast_impl", rounded)
        yield


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if INTERPRETED else "cuda"


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The Triton kernels of the module's OP."""
    from harness.triton_kernels import load_triton

    return load_triton(request.module.OP)


@pytest.fixture
def reference(request: pytest.FixtureRequest, kernel_reference) -> ModuleType:
    """The float64 reference of the module's OP."""
    return kernel_reference(request.module.OP)
