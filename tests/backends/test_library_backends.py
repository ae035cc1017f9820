"""Backends of other people's libraries, with stand-ins that demand what the libraries do: layouts, types, lengths.

fla's kernels run by Triton's interpreter: tests/triton_kernels/numerics/test_fla_backend.py.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operand_checks import assert_right, attention  # noqa: E402

from harness.backends.attention.flash_attn import FlashAttn  # noqa: E402
from harness.backends.attention.flashinfer import FlashInfer  # noqa: E402
from harness.backends.base import Executor  # noqa: E402
from harness.backends.library import installed, load_library  # noqa: E402
from harness.backends.linear_attention.fla import Fla  # noqa: E402
from harness.backends.registry import attention_backends, linear_attention_backends  # noqa: E402
from harness.errors import UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import AttentionProblem, DeltaProblem  # noqa: E402

pytestmark = pytest.mark.torch

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
HOPPER = DeviceInfo(kind="cuda", name="a test's GPU", arch="sm_90")
LIBRARIES = ("flash_attn", "flashinfer", "fla")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def problem(**changes: Any) -> AttentionProblem:
    usual = {"m": 1, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "max_context": 64, "dtype": "BF16"}
    return AttentionProblem.model_validate({**usual, **changes})


def delta_problem(**changes: Any) -> DeltaProblem:
    usual = {"m": 1, "num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 64, "value_head_dim": 64}
    return DeltaProblem.model_validate({**usual, "conv_kernel": 4, "dtype": "BF16", **changes})


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize(
    ("m", "context", "group", "head_dim"),
    [(1, 1, 1, 64), (1, 129, 7, 80), (1, 70, 8, 256), (5, 5, 2, 64), (4, 50, 3, 128)],
)
def test_flash_attn(stand_ins: Path, dtype: str, m: int, context: int, group: int, head_dim: int) -> None:
    operands = attention(m, context, group, head_dim, dtype)
    assert FlashAttn.supports(operands._problem, HOPPER).ok
    assert_right(FlashAttn, operands, Executor(HOPPER))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize(("context", "group", "head_dim"), [(7, 1, 64), (55, 7, 80), (119, 8, 256)])
def test_flashinfer(stand_ins: Path, dtype: str, context: int, group: int, head_dim: int) -> None:
    """The cache has nine places more: 16, 64 and 128."""
    operands = attention(1, context, group, head_dim, dtype)
    assert FlashInfer.supports(operands._problem, HOPPER).ok
    assert_right(FlashInfer, operands, Executor(HOPPER))


@pytest.mark.parametrize("backend", [FlashAttn, FlashInfer])
def test_every_setting(stand_ins: Path, backend: Any) -> None:
    operands = attention(1, 55, 4, 64)
    settings = backend.tuning(operands._problem, HOPPER)
    assert len(settings) >= 3
    for setting in settings:
        assert_right(backend, operands, Executor(HOPPER), **setting)


def test_settings_are_those_that_the_problem_allows() -> None:
    assert FlashAttn.tuning(problem(m=4), HOPPER) == ()
    assert FlashInfer.tuning(problem(max_context=96), HOPPER) == [{"page_size": 16}, {"page_size": 32}]


@pytest.mark.parametrize("backend", [FlashAttn, FlashInfer])
def test_the_context_is_read_when_the_launch_runs(stand_ins: Path, backend: Any) -> None:
    p, random = problem(), torch.Generator().manual_seed(1)
    q = torch.randn(1, 8, 64, generator=random).bfloat16()
    k_cache, v_cache = torch.randn(2, 2, 64, 64, generator=random).bfloat16()
    context, out = torch.tensor([0]), torch.full_like(q, torch.nan)
    launch = backend(Executor(HOPPER)).bind(q, k_cache, v_cache, context, out, p)
    for filled in (3, 64, 7):
        context.fill_(filled)
        assert launch() is None
        keys, values = (cache[:, :filled].repeat_interleave(4, 0).double() for cache in (k_cache, v_cache))
        exact = torch.nn.functional.scaled_dot_product_attention(q.view(8, 1, 64).double(), keys, values)
        torch.testing.assert_close(out.view(8, 1, 64).double(), exact, rtol=2**-7, atol=2**-7)


REFUSALS: list[tuple[Any, Any, dict[str, Any], str]] = [
    (FlashAttn, problem(), {"kind": "cpu"}, "the device is cpu"),
    (FlashAttn, problem(), {"arch": "sm_75"}, "sm_75"),
    (FlashAttn, problem(dtype="F32"), {}, "F32"),
    (FlashAttn, problem(head_dim=68), {}, "head_dim 68"),
    (FlashAttn, problem(head_dim=264), {}, "head_dim 264"),
    (FlashAttn, problem(num_heads=7), {}, "7 heads"),
    (FlashInfer, problem(), {"kind": "cpu", "arch": None}, "the device is cpu"),
    (FlashInfer, problem(), {"kind": "rocm", "arch": "gfx942"}, "gfx942"),
    (FlashInfer, problem(), {"arch": "sm_86"}, "sm_86"),
    (FlashInfer, problem(m=2), {}, "one query"),
    (FlashInfer, problem(dtype="F32"), {}, "F32"),
    (FlashInfer, problem(head_dim=72), {}, "head_dim 72"),
    (FlashInfer, problem(num_heads=66), {}, "66 heads"),
    (FlashInfer, problem(max_context=72), {}, "72 places"),
]


@pytest.mark.parametrize(("backend", "asked", "changes", "why"), REFUSALS)
def test_refusals_say_why_and_what_to_do(stand_ins: Path, backend: Any, asked: Any, changes: Any, why: str) -> None:
    assert backend.supports(problem(), HOPPER).ok
    support = backend.supports(asked, HOPPER.model_copy(update=changes))
    assert not support.ok and why in support.why and support.mend


@pytest.mark.parametrize(
    ("asked", "device", "why"),
    [
        (delta_problem(), CPU, "the device is cpu"),
        (delta_problem(dtype="F32"), HOPPER, "F32"),
        (delta_problem(key_head_dim=320), HOPPER, "key_head_dim 320"),
        (delta_problem(num_value_heads=3), HOPPER, "3 value heads"),
    ],
)
def test_refusals_of_fla(monkeypatch: pytest.MonkeyPatch, asked: DeltaProblem, device: DeviceInfo, why: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    here = importlib.util.spec_from_file_location("here", __file__)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: here)
    assert Fla.supports(delta_problem(), HOPPER).ok
    support = Fla.supports(asked, device)
    assert not support.ok and why in support.why and support.mend


@pytest.mark.parametrize("device", [CPU, HOPPER])
def test_what_is_not_installed_says_what_to_install(nothing_installed: None, device: DeviceInfo) -> None:
    for backend, asked, package in (
        (FlashAttn, problem(), "flash_attn"), (FlashInfer, problem(), "flashinfer"), (Fla, delta_problem(), "fla"),
    ):  # fmt: skip
        support = backend.supports(asked, device)
        assert support.why == f"{package} is not installed" and "pip install" in support.mend


def test_a_folder_by_its_name_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_library" / "cute").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not installed("some_library", "install it").ok
    (tmp_path / "some_library" / "__init__.py").touch()
    assert installed("some_library", "install it").ok


@pytest.mark.parametrize("fault", ["ImportError('undefined symbol\\nof another torch')", "OSError('libcuda.so.1')"])
def test_a_build_that_does_not_load_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:  # fmt: skip
    (tmp_path / "broken_library.py").write_text(f"raise {fault}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnavailableError, match=r"broken_library is installed and can't be loaded") as raised:
        load_library("broken_library")
    assert "\n" not in raised.value.what and raised.value.mend


def test_auto_takes_none_of_them(stand_ins: Path) -> None:
    assert FlashAttn.supports(problem(), HOPPER).ok and FlashInfer.supports(problem(), HOPPER).ok
    assert attention_backends.choose("auto", problem(), HOPPER).backend.name == "torch-sdpa"
    assert attention_backends.choose("flash-attn", problem(), HOPPER).backend is FlashAttn
    assert linear_attention_backends.choose("auto", delta_problem(), HOPPER).backend.name == "torch-recurrent"


def test_listing_imports_no_library(stand_ins: Path) -> None:
    """The stand-ins are on the path, and every backend is asked: none of them is loaded by that."""
    code = f"""
import json, sys
sys.path.insert(0, {str(stand_ins)!r})
from harness.report.backends import backend_rows
rows = {{row["backend"]: row["here"] for row in backend_rows()}}
print(json.dumps([rows["flash-attn"], rows["flashinfer"], sorted(set(sys.modules) & {set(LIBRARIES)})]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    flash_attn, flashinfer, loaded = json.loads(done.stdout)
    assert "the device is cpu" in flash_attn and "the device is cpu" in flashinfer
    assert loaded == []


def test_bytes_by_hand(stand_ins: Path) -> None:
    """Keys and values of 2 heads x 64 in bf16; and of a rule that copies its state, 4 x 64 x 64 in fp32 once more."""
    for backend in (FlashAttn, FlashInfer):
        assert backend(Executor(HOPPER)).read_bytes(problem(), 10) == 10 * 2 * 2 * 64 * 2
    conv = (2 * 2 * 64 + 4 * 64) * 7 * 2
    assert Fla.read_bytes(Fla.__new__(Fla), delta_problem()) == 2 * (4 * 64 * 64 * 4) + conv
