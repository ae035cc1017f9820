"""The sizes that backends offer are those that their kernels take: kernels are data, and say so a second time."""

import re
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from operand_checks import DTYPES  # noqa: E402

from harness.backends.attention import cpu_decode, gpu_decode, triton_decode, triton_prefill  # noqa: E402
from harness.backends.base import Executor  # noqa: E402
from harness.backends.linear_attention import cpu_recurrent, gpu_recurrent, triton_delta  # noqa: E402
from harness.errors import UnavailableError  # noqa: E402
from harness.kernel_build import kernel_source  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import AttentionProblem  # noqa: E402

pytestmark = pytest.mark.torch

SAID_TWICE = [
    (triton_decode, "MAX_HEAD_DIM, HEAD_DIM_STEP", "decode_attention/triton_kernel.py", "MAX_HEAD_DIM, HEAD_DIM_STEP"),
    (triton_decode, "MAX_GROUP", "decode_attention/triton_kernel.py", "MAX_GROUP"),
    (
        triton_prefill,
        "MAX_HEAD_DIM, HEAD_DIM_STEP",
        "prefill_attention/triton_kernel.py",
        "MAX_HEAD_DIM, HEAD_DIM_STEP",
    ),
    (triton_delta, "MAX_HEAD_DIM", "gated_delta_rule/triton_kernel.py", "MAX_DIM"),
    (gpu_decode, "MAX_HEAD_DIM", "decode_attention/gpu.cu", "kMaxHeadDim"),
    (gpu_recurrent, "MAX_HEAD_DIM", "gated_delta_rule/gpu.cu", "kMaxDim"),
    (cpu_decode, "MAX_HEAD_DIM", "decode_attention/cpu.cpp", "kMaxHeadDim"),
    (cpu_decode, "MAX_GROUP", "decode_attention/cpu.cpp", "kMaxGroup"),
    (cpu_recurrent, "MAX_HEAD_DIM", "gated_delta_rule/cpu.cpp", "kMaxDim"),
]


@pytest.mark.parametrize(("backend", "name", "source", "kernels_name"), SAID_TWICE)
def test_a_kernels_limit_is_its_backends(backend: ModuleType, name: str, source: str, kernels_name: str) -> None:
    op, _, file = source.partition("/")
    found = re.search(rf"\b{kernels_name} = (\d+(?:, \d+)*)", kernel_source(op, file).read_text())
    limits = [getattr(backend, one) for one in name.split(", ")]
    assert found is not None and limits == [int(limit) for limit in found[1].split(", ")]


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("head_dim", [4, 8, 60, 64, 100, 252, 256, 260, 264])
def test_what_decode_attention_on_a_gpu_takes(dtype: str, head_dim: int) -> None:
    """The kernel itself refuses what its backend refuses, and nothing else."""
    host = DeviceInfo(kind="rocm", name="the host", arch="host", wave_width=64)
    problem = AttentionProblem(m=1, num_heads=2, num_kv_heads=2, head_dim=head_dim, max_context=8, dtype=dtype)
    q, cache = torch.zeros(1, 2, head_dim, dtype=DTYPES[dtype]), torch.zeros(2, 8, head_dim, dtype=DTYPES[dtype])
    launch = gpu_decode.GpuDecode(Executor(host), num_splits=1).bind(
        q, cache, cache, torch.tensor([3]), torch.empty_like(q), problem
    )
    try:
        launch()
    except UnavailableError:
        assert not gpu_decode.GpuDecode.supports(problem, host).ok
    else:
        assert gpu_decode.GpuDecode.supports(problem, host).ok
