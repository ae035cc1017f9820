"""flash-linear-attention's own kernels behind our backend, where `fla` is installed (make test WITH="triton fla")."""

import builtins
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="no fla here: pip install fla-core")


@pytest.fixture(autouse=True)
def _what_the_interpreter_lacks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a card to tune on: the first setting is taken. Of loops: a kernel's index is a tensor, there it is an int."""
    if device == "cuda":
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import TensorHandle

    chunks = importlib.import_module("fla.ops.common.chunk_delta_h")

    def indices(*limits: Any) -> Iterator[Any]:
        values = (limit.handle.data.item() if hasattr(limit, "handle") else limit for limit in limits)
        for index in builtins.range(*values):
            yield tl.tensor(TensorHandle(np.array([index], np.int32), tl.int32), tl.int32)

    monkeypatch.setattr(Autotuner, "_bench", lambda self, *arguments, config, **meta: [0.0, 0.0, 0.0])
    monkeypatch.setattr(chunks, "range", indices, raising=False)


@pytest.fixture
def executor(device: str) -> Any:
    from harness.backends.base import Executor
    from harness.devices.cpu import detect_cpu

    if device == "cuda":
        pytest.skip("operand_checks poses its operands on the host: scripts/gpu_check.sh runs the A/B on the card")
    return Executor(detect_cpu())


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(
    ("m", "key_heads", "value_heads", "dim"), [(1, 1, 1, 32), (1, 2, 6, 64), (3, 1, 2, 32), (70, 1, 2, 32)]
)
def test_delta(executor: Any, dtype: str, m: int, key_heads: int, value_heads: int, dim: int) -> None:
    """A step; less than a chunk; a chunk and some more."""
    from operand_checks import assert_right, delta

    from harness.backends.linear_attention.fla import Fla

    operands = delta(m, key_heads, value_heads, dim, dtype)
    assert Fla.supports(operands._problem, executor.device).ok == (dtype != "F32")
    assert_right(Fla, operands, executor)
