"""Backends of gpu.cu on the host, where lanes are fibres: that their arguments mean what the kernels take."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operand_checks import assert_right, attention, delta, linear  # noqa: E402

from harness.backends.attention import gpu_decode  # noqa: E402
from harness.backends.base import BlockCache, Executor  # noqa: E402
from harness.backends.linear import gpu_gemv  # noqa: E402
from harness.backends.linear_attention import gpu_recurrent  # noqa: E402
from harness.errors import UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")


@pytest.fixture(params=[32, 64])
def executor(request: pytest.FixtureRequest) -> Executor:
    """A card that is the host; its libraries are those of the kernels' own tests."""
    return Executor(DeviceInfo(kind="rocm", name="the host", arch="host", wave_width=request.param))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 33, 128), (3, 16, 72), (8, 5, 64)])
def test_gemv(executor: Executor, dtype: str, m: int, n: int, k: int) -> None:
    assert_right(gpu_gemv.GpuGemv, linear(m, n, k, dtype), executor)


@pytest.mark.parametrize(("executor", "m"), [(32, 5), (64, 1)], indirect=["executor"])
def test_every_setting_of_gemv(executor: Executor, m: int) -> None:
    operands = linear(m, 40, 192)
    settings = gpu_gemv.GpuGemv.tuning(LinearProblem(m=m, n=40, k=192, dtype="BF16"), executor.device)
    assert len(settings) >= 8
    for setting in settings:
        assert_right(gpu_gemv.GpuGemv, operands, executor, **setting)


@pytest.mark.parametrize(
    ("context", "group", "head_dim", "dtype"), [(1, 1, 64, "BF16"), (129, 4, 96, "F16"), (70, 8, 128, "F32")]
)
def test_decode_attention(executor: Executor, context: int, group: int, head_dim: int, dtype: str) -> None:
    for splits in (1, 8):
        assert_right(
            gpu_decode.GpuDecode, attention(1, context, group, head_dim, dtype), executor, num_splits=splits
        )  # fmt: skip


def test_a_launch_is_moved_and_counts_itself(executor: Executor) -> None:
    """Bound once, on buffers that are then gone."""
    weight, problem = torch.randn(20, 64), LinearProblem(m=2, n=20, k=64, dtype="F32")
    backend = gpu_gemv.GpuGemv(executor, split_k=2)
    x, out, calls = torch.randn(2, 64), torch.empty(2, 20), torch.tensor([3, 4])
    move = backend.bind_counted(x, backend.prepare(weight, None, problem), out, calls[1]).mover(x, out)
    for seed in range(3):
        other, result = torch.randn(2, 64) * (seed + 1), torch.full((2, 20), torch.nan)
        move(other.data_ptr(), result.data_ptr(), 0)
        assert torch.allclose(result.double(), other.double() @ weight.double().T, atol=1e-4)
    assert calls.tolist() == [3, 7]


@pytest.mark.parametrize("heads_first", [False, True])
def test_requests_over_a_servers_cache(executor: Executor, heads_first: bool) -> None:
    """Keys and values of a place side by side, blocks in any order, one request that only fills up the batch."""
    contexts, size, kv_heads, head_dim = [21, 0, 6], 8, 2, 32
    problem = AttentionProblem(
        m=1, num_heads=6, num_kv_heads=kv_heads, head_dim=head_dim, max_context=64, dtype="F32"
    )  # fmt: skip
    blocks = torch.full((9, kv_heads, size, 2 * head_dim), torch.nan)
    blocks = blocks if heads_first else blocks.transpose(1, 2).contiguous().transpose(1, 2)
    cache = BlockCache(
        blocks[..., :head_dim], blocks[..., head_dim:],
        torch.tensor([[7, 2, 5, 99], [99, 99, 99, 99], [1, 99, 99, 99]], dtype=torch.int32),
    )  # fmt: skip
    kept: list[Any] = []
    for request, context in enumerate(contexts):
        keys, values = torch.randn(2, kv_heads, context, head_dim)
        for place in range(context):
            block = int(cache.table[request, place // size])
            blocks[block, :, place % size] = torch.cat((keys[:, place], values[:, place]), -1)
        kept.append((keys.double(), values.double()))
    q, out, calls = torch.randn(3, 6, head_dim), torch.full((3, 6, head_dim), torch.nan), torch.tensor([0])
    filled = torch.tensor(contexts, dtype=torch.int32)
    launch = gpu_decode.GpuDecode(executor, num_splits=4).bind_requests(q, cache, filled, out, calls[0], problem)
    launch()
    for request, (keys, values) in enumerate(kept):
        for head in range(6):
            scores = keys[head // 3] @ q[request, head].double() / head_dim**0.5
            expected = torch.softmax(scores, 0) @ values[head // 3]
            assert torch.allclose(out[request, head].double(), expected, atol=1e-5)
    assert (out[1] == 0).all() and calls.tolist() == [1]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_gated_delta_step(executor: Executor, dtype: str) -> None:
    assert_right(gpu_recurrent.GpuRecurrent, delta(1, 2, 6, 32, dtype), executor)


def test_a_refused_launch_says_why(executor: Executor) -> None:
    operands = linear(8, 16, 64)
    with pytest.raises(UnavailableError, match="gemv_bf16_bf16 was not launched: a tuning parameter"):
        assert_right(gpu_gemv.GpuGemv, operands, executor, rows_per_wave=4)


REFUSALS = [
    (gpu_gemv.GpuGemv, LinearProblem(m=9, n=8, k=8, dtype="BF16"), "9 rows"),
    (gpu_gemv.GpuGemv, LinearProblem(m=1, n=8, k=8, dtype="F8_E4M3"), "F8_E4M3"),
    (
        gpu_decode.GpuDecode,
        AttentionProblem(m=2, num_heads=2, num_kv_heads=2, head_dim=64, max_context=8, dtype="BF16"),
        "one query",
    ),
    (
        gpu_decode.GpuDecode,
        AttentionProblem(m=1, num_heads=2, num_kv_heads=2, head_dim=60, max_context=8, dtype="BF16"),
        "head_dim 60",
    ),
    (
        gpu_recurrent.GpuRecurrent,
        DeltaProblem(
            m=4, num_key_heads=1, num_value_heads=1, key_head_dim=32, value_head_dim=32, conv_kernel=4, dtype="BF16"
        ),
        "one token",
    ),
]


@pytest.mark.parametrize(("backend", "problem", "why"), REFUSALS)
def test_refusals_say_why_and_what_to_do(backend: Any, problem: Any, why: str) -> None:
    support = backend.supports(problem, DeviceInfo(kind="cuda", name="c", arch="host"))
    assert not support.ok and why in support.why and support.mend
    assert not backend.supports(problem, CPU).ok


def test_without_the_cards_compiler_a_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPCC", "/no/such/hipcc")
    problem = LinearProblem(m=1, n=8, k=8, dtype="BF16")
    support = gpu_gemv.GpuGemv.supports(problem, DeviceInfo(kind="dcu", name="BW1000", arch="gfx936", wave_width=64))
    assert not support.ok and "hipcc" in support.why.lower() and support.mend
