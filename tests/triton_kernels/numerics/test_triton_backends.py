"""Backends of Triton kernels: that they hand their tensors over as the kernels take them."""

import pytest


@pytest.fixture
def executor(device: str):
    from harness.backends.base import Executor
    from harness.devices.cpu import detect_cpu

    if device == "cuda":
        pytest.skip("operand_checks poses its operands on the host: scripts/gpu_check.sh runs the A/B on the card")
    return Executor(detect_cpu())


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_gemv(executor, dtype: str) -> None:
    from operand_checks import assert_right, linear

    from harness.backends.linear.triton_gemv import TritonGemv

    operands = linear(3, 19, 200, dtype)
    assert_right(TritonGemv, operands, executor)
    last = TritonGemv.tuning(operands._problem, executor.device)[-1]
    assert_right(TritonGemv, operands, executor, **last)


@pytest.mark.parametrize(("m", "context"), [(1, 65), (5, 40)])
def test_attention(executor, m: int, context: int) -> None:
    from operand_checks import assert_right, attention

    from harness.backends.attention.triton_decode import TritonDecode
    from harness.backends.attention.triton_prefill import TritonPrefill

    backend, other = (TritonDecode, TritonPrefill) if m == 1 else (TritonPrefill, TritonDecode)
    operands = attention(m, context, 2, 64, "F32")
    assert backend.supports(operands._problem, executor.device).ok
    assert not other.supports(operands._problem, executor.device).ok
    assert_right(backend, operands, executor)


@pytest.mark.parametrize("head_dim", [72, 272])
@pytest.mark.parametrize("m", [1, 5])
def test_attention_refuses_what_the_kernels_lack(executor, m: int, head_dim: int) -> None:
    from operand_checks import attention

    from harness.backends.attention.triton_decode import TritonDecode
    from harness.backends.attention.triton_prefill import TritonPrefill

    backend = TritonDecode if m == 1 else TritonPrefill
    assert not backend.supports(attention(m, 40, 2, head_dim, "F32")._problem, executor.device).ok


@pytest.mark.parametrize("m", [1, 20])
def test_delta(executor, m: int) -> None:
    from operand_checks import assert_right, delta

    from harness.backends.linear_attention.triton_delta import TritonDelta

    assert_right(TritonDelta, delta(m, 1, 2, 32, "F32"), executor)
