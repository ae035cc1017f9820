"""oneDNN on a re-laid-out weight: right where it says it can, refused where torch refuses, and no copy hidden."""

import pytest

torch = pytest.importorskip("torch")

from operand_checks import DTYPES, PLACES, assert_right, linear  # noqa: E402  # behind the skip

from harness.backends.base import Executor  # noqa: E402
from harness.backends.linear.onednn import OneDnn  # noqa: E402
from harness.backends.registry import linear_backends  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402

pytestmark = pytest.mark.torch

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
EXECUTOR = Executor(CPU)


def problem(dtype: str, m: int = 1, n: int = 33, k: int = 31, bias: bool = False) -> LinearProblem:
    return LinearProblem(m=m, n=n, k=k, dtype=dtype, bias=bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 33, 31), (1, 1, 1), (4, 48, 64), (40, 17, 65)])
def test_it_is_right_where_it_says_it_can_and_torch_refuses_the_rest(dtype, bias, m, n, k):
    operands = linear(m, n, k, dtype, bias)
    if OneDnn.supports(problem(dtype, m, n, k), CPU).ok:
        assert_right(OneDnn, operands, EXECUTOR)
    else:
        with pytest.raises(RuntimeError, match="path needs the cpu support"):
            operands.bind(OneDnn, {}, EXECUTOR)


def test_float_always_runs():
    assert OneDnn.supports(problem("F32"), CPU).ok


@pytest.mark.parametrize("packed_for", [1, 4])
@pytest.mark.parametrize("m", [1, 3])
def test_any_number_of_rows_runs_on_any_layout_and_into_a_part_of_a_buffer(packed_for, m):
    """As an engine does: one copy a layer, made for the first problem, serves every batch."""
    random = torch.Generator().manual_seed(m)
    x, weight = torch.randn(m, 31, generator=random), torch.randn(33, 31, generator=random)
    buffer = torch.full((m, 50), torch.nan)
    backend = OneDnn(EXECUTOR)
    packed = backend.prepare(weight, None, problem("F32", packed_for))
    backend.bind(x, packed, buffer[:, 8:41])()
    torch.testing.assert_close(buffer[:, 8:41].double(), x.double() @ weight.double().t(), rtol=1e-5, atol=1e-5)
    assert buffer[:, :8].isnan().all() and buffer[:, 41:].isnan().all()


@pytest.mark.parametrize("m", [1, 4])
def test_its_copy_is_declared_with_its_padding(m):
    operands = linear(m, 33, 31, "F32", bias=True)
    bound = operands.bind(OneDnn, {}, EXECUTOR)
    weight_bytes, bias_bytes = 33 * 31 * 4, 33 * 4
    assert bound.kept_bytes >= PLACES * weight_bytes
    assert bound.read_bytes == bound.kept_bytes // PLACES + bias_bytes
    assert not OneDnn.contest_legal


def test_the_caller_may_free_the_weight():
    """A copy it is: what happens to the original later changes nothing."""
    weight, x, out = torch.ones(4, 8), torch.ones(1, 8), torch.empty(1, 4)
    backend = OneDnn(EXECUTOR)
    launch = backend.bind(x, backend.prepare(weight, None, problem("F32", 1, 4, 8)), out)
    weight.zero_()
    launch()
    assert out.tolist() == [[8.0] * 4]


def test_refusals_say_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch):
    cuda = OneDnn.supports(problem("F32"), DeviceInfo(kind="cuda", name="c"))
    eight_bits = OneDnn.supports(problem("F8_E4M3"), CPU)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    without = OneDnn.supports(problem("F32"), CPU)
    for support, why in ((cuda, "cuda"), (eight_bits, "F8_E4M3"), (without, "no oneDNN")):
        assert not support.ok and why in support.why and support.mend


def test_auto_does_not_take_it():
    assert OneDnn.supports(problem("F32", m=9), CPU).ok
    assert linear_backends.choose("auto", problem("F32", m=9), CPU).backend.name == "torch"
