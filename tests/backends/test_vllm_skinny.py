"""vLLM's skinny product, with a package in vLLM's place that asks of its arguments what vLLM's kernel asks."""

import importlib.machinery
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operand_checks import assert_right, linear  # noqa: E402  # behind the skip

from harness.backends.base import Executor  # noqa: E402
from harness.backends.linear.vllm_skinny import VllmSkinny  # noqa: E402
from harness.backends.registry import linear_backends  # noqa: E402
from harness.errors import UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402

pytestmark = pytest.mark.torch

UNITS = 304
CARD = DeviceInfo(kind="rocm", name="MI300X", arch="gfx942", num_compute_units=UNITS)
EXECUTOR = Executor(CARD)
OPS = f"""
import torch

def wvSplitK(a, b, cu_count, bias=None):
    assert a.dtype == b.dtype and a.dtype in (torch.float16, torch.bfloat16)
    assert a.is_contiguous() and b.is_contiguous(), "older kernels take no strides"
    assert a.shape[1] == b.shape[1] and a.shape[1] % 8 == 0
    assert 1 <= b.shape[0] <= 4 and a.shape[0] > 8
    assert cu_count == {UNITS}
    return torch.nn.functional.linear(b, a, bias)
"""
BIASLESS = OPS.replace(", bias=None", "").replace("b, a, bias", "b, a")


def forget_vllm() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a vLLM with these operators; it stays on the path for one test."""
    forget_vllm()

    def install(ops: str = OPS, has_extension: bool = True) -> None:
        folder = tmp_path / "vllm"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "_custom_ops.py").write_text(ops)
        if has_extension:
            (folder / f"_rocm_C{importlib.machinery.EXTENSION_SUFFIXES[0]}").touch()
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    forget_vllm()


def problem(**changes: Any) -> LinearProblem:
    return LinearProblem(**{"m": 1, "n": 48, "k": 64, "dtype": "BF16", **changes})


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 64), (4, 9, 8)])
def test_its_arguments_are_what_the_kernel_takes(vllm: Any, dtype: str, bias: bool, m: int, n: int, k: int) -> None:
    vllm()
    assert VllmSkinny.supports(problem(m=m, n=n, k=k, dtype=dtype, bias=bias), CARD).ok
    assert_right(VllmSkinny, linear(m, n, k, dtype, bias), EXECUTOR)


def test_versions_whose_operator_takes_no_bias(vllm: Any) -> None:
    vllm(BIASLESS)
    assert_right(VllmSkinny, linear(2, 48, 64, bias=False), EXECUTOR)
    with pytest.raises(TypeError, match="positional argument"):
        assert_right(VllmSkinny, linear(2, 48, 64, bias=True), EXECUTOR)


def test_rows_of_larger_buffers(vllm: Any) -> None:
    vllm()
    x, weight = torch.randn(3, 100).bfloat16()[:, 8:72], torch.randn(16, 64).bfloat16()
    out = torch.full((3, 40), torch.nan, dtype=torch.bfloat16)
    backend = VllmSkinny(EXECUTOR)
    backend.bind(x, backend.prepare(weight, None, problem(m=3, n=16)), out[:, 8:24])()
    torch.testing.assert_close(out[:, 8:24], torch.nn.functional.linear(x, weight))
    assert out[:, :8].isnan().all() and out[:, 24:].isnan().all()


def test_asking_what_it_supports_imports_no_vllm(vllm: Any) -> None:
    vllm()
    assert VllmSkinny.supports(problem(), CARD).ok
    assert "vllm" not in sys.modules and "vllm-skinny" in linear_backends.all()


def test_a_vllm_that_does_not_load_says_so_in_a_line(vllm: Any) -> None:
    vllm("raise ImportError('undefined symbol\\nof another torch')\n")
    with pytest.raises(UnavailableError, match=r"can't be loaded: undefined symbol \("):
        VllmSkinny(EXECUTOR)


ROCM = {"kind": "rocm", "name": "c", "num_compute_units": 60}
REFUSALS = [
    ({"dtype": "F32"}, CARD, "no such kernel for F32"),
    ({"m": 5}, CARD, "5 rows are more than 4"),
    ({"n": 8}, CARD, "8 features are fewer than 9"),
    ({"k": 68}, CARD, "68 inputs are no multiple of 8"),
    ({}, DeviceInfo(kind="cpu", name="c"), "the device is cpu"),
    ({}, DeviceInfo(kind="cuda", name="c", arch="sm_90"), "the device is cuda"),
    ({}, DeviceInfo(kind="dcu", name="c", arch="gfx936"), "the device is dcu"),
    *(({}, DeviceInfo(arch=arch, **ROCM), f"the card is {arch}") for arch in ("gfx906", "gfx908", "gfx1151", None)),
]


@pytest.mark.parametrize(("changes", "device", "why"), REFUSALS)
def test_refusals_say_why_and_what_to_do(vllm: Any, changes: dict[str, Any], device: DeviceInfo, why: str) -> None:
    vllm()
    support = VllmSkinny.supports(problem(**changes), device)
    assert not support.ok and why in support.why and support.mend


def test_a_vllm_that_is_absent_or_of_another_device_is_named(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        absent = VllmSkinny.supports(problem(), CARD)
    vllm(has_extension=False)
    without = VllmSkinny.supports(problem(), CARD)
    assert not absent.ok and absent.why == "vllm is not installed" and absent.mend
    assert not without.ok and "built without its ROCm operators" in without.why and without.mend
