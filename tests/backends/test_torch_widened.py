"""A product in fp32 of a narrower weight, widened block by block: against float64, whatever this CPU can multiply."""

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import Executor  # noqa: E402  # behind the skip
from harness.backends.linear import torch_widened  # noqa: E402
from harness.backends.linear.torch_widened import TorchWidened  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402

pytestmark = pytest.mark.torch

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-23}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(torch_widened, "BLOCK_ROWS", 16)


def operands(m, n, k, dtype):
    """(x, weight, bias), random."""
    random = torch.Generator().manual_seed(n * k)
    return [torch.randn(shape, generator=random).to(DTYPES[dtype]) for shape in ((m, k), (n, k), (n,))]


def bind(backend, x, weight, bias, out, dtype):
    (n, k), m = weight.shape, x.shape[0]
    problem = LinearProblem(m=m, n=n, k=k, dtype=dtype, bias=bias is not None)
    return backend.bind(x, backend.prepare(weight, bias, problem), out)


def assert_product(out, x, weight, bias):
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    terms = x.double().abs() @ weight.double().abs().T
    tolerance = exact.abs() * ROUNDING[out.dtype] + 4 * x.shape[1] ** 0.5 * 2.0**-24 * terms
    assert ((out.double() - exact).abs() <= tolerance).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (9, 15, 31), (40, 16, 48), (3, 17, 64), (64, 100, 33)])
def test_product(m, n, k, dtype, with_bias):
    x, weight, bias = operands(m, n, k, dtype)
    bias = bias if with_bias else None
    out = torch.full((m, n), torch.nan, dtype=DTYPES[dtype])
    bind(TorchWidened(Executor(CPU)), x, weight, bias, out, dtype)()
    assert_product(out, x, weight, bias)


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_a_part_of_a_buffer_and_sums_in_fp32(out_dtype, with_bias):
    """Logits in fp32 are the sums themselves; what stands beside the part stays."""
    x, weight, bias = operands(5, 24, 64, "BF16")
    bias = bias if with_bias else None
    buffer = torch.full((5, 40), torch.nan, dtype=out_dtype)
    bind(TorchWidened(Executor(CPU)), x, weight, bias, buffer[:, 8:32], "BF16")()
    assert_product(buffer[:, 8:32], x, weight, bias)
    assert buffer[:, :8].isnan().all() and buffer[:, 32:].isnan().all()


def test_layers_of_different_widths_share_a_block():
    """The block grows with a wider layer, which must not take it from under the one bound before."""
    backend, layers = TorchWidened(Executor(CPU)), []
    for k in (32, 80, 16):
        x, weight, bias = operands(4, 40, k, "BF16")
        out = torch.full((4, 40), torch.nan, dtype=torch.bfloat16)
        layers.append((bind(backend, x, weight, bias, out, "BF16"), out, x, weight, bias))
    for launch, out, *inputs in layers * 2:
        out.fill_(torch.nan)
        launch()
        assert_product(out, *inputs)


@pytest.mark.parametrize(
    "m, dtype, kind, multiplies, why",
    [
        (16, "BF16", "cpu", True, "multiplies BF16 itself"),
        (16, "F32", "cpu", False, "F32 is not widened"),
        (16, "BF16", "cuda", False, "the device is cuda"),
        (1, "BF16", "cpu", False, "one row"),
    ],
)
def test_refusals(m, dtype, kind, multiplies, why, monkeypatch):
    monkeypatch.setattr(torch_widened, "multiplies", lambda dtype: multiplies)
    problem = LinearProblem(m=m, n=16, k=32, dtype=dtype)
    support = TorchWidened.supports(problem, DeviceInfo(kind=kind, name="a test's"))
    assert not support.ok and why in support.why and support.mend


def test_torch_is_asked_for_each_type(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False, raising=False)
    assert torch_widened.multiplies("BF16") and not torch_widened.multiplies("F16")


def test_a_torch_without_onednn_is_not_asked_what_only_onednn_has(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: 1 / 0, raising=False)
    problem = LinearProblem(m=16, n=16, k=32, dtype="BF16")
    assert TorchWidened.supports(problem, DeviceInfo(kind="cpu", name="a test's")).ok
