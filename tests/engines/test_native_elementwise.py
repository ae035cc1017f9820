"""Two implementations of the engine's own operations against float64, through the decoder's protocol.

Triton's is compared with torch's in tests/triton_kernels/numerics.
"""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import Executor  # noqa: E402  # behind the skip
from harness.engines.native.elementwise.base import Norm  # noqa: E402
from harness.engines.native.elementwise.choose import choose_elementwise  # noqa: E402
from harness.engines.native.elementwise.cpu_kernels import CpuElementwise  # noqa: E402
from harness.engines.native.elementwise.torch_ops import TorchElementwise  # noqa: E402
from harness.errors import ConfigError, UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
GPU = DeviceInfo(kind="cuda", name="a test's GPU")
EPS = 1e-6
ULP = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-21}

each_type = pytest.mark.parametrize("dtype", ULP, ids=["bf16", "f32"])
rows = pytest.mark.parametrize("m", [1, 5])
centered_or_not = pytest.mark.parametrize("centered", [False, True], ids=["factor", "centered"])


@pytest.fixture(params=["torch", "cpu"])
def ops(request, cpu_pool):
    return TorchElementwise() if request.param == "torch" else CpuElementwise(Executor(CPU, cpu_pool))


@pytest.fixture
def reference(kernel_reference):
    return kernel_reference("elementwise")


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + shape[-1])).to(dtype)


def poison(*shape, dtype):
    return torch.full(shape, torch.nan, dtype=dtype)


def exact(tensor) -> np.ndarray:
    return tensor.double().numpy()


def assert_close(actual, expected, ulps, size=None):
    """Within so many units in the last place of each value, or of `size`."""
    scale = np.abs(expected) if size is None else size
    error = np.abs(exact(actual) - expected)
    assert (error <= ulps * ULP[actual.dtype] * scale).all(), f"off by up to {np.nanmax(error)}"


@each_type
@rows
def test_embed(ops, dtype, m):
    table, ids, out = (
        normal(11, 40, dtype=dtype),
        torch.tensor([10, 0, 3, 3, 7][:m]),
        poison(m, 40, dtype=dtype),
    )
    ops.embed(ids, table, out)()
    assert torch.equal(out, table[ids])


@each_type
@rows
@centered_or_not
def test_rmsnorm(ops, reference, dtype, m, centered):
    x, weight, out = normal(m, 40, dtype=dtype), normal(40, dtype=dtype, seed=1), poison(m, 40, dtype=dtype)
    ops.rmsnorm(x, Norm(weight, EPS, centered), out)()
    assert_close(out, reference.rmsnorm(exact(x), exact(weight) + centered, EPS), 2)


@each_type
@rows
@centered_or_not
def test_add_rmsnorm(ops, reference, dtype, m, centered):
    residual, delta = normal(m, 40, dtype=dtype), normal(m, 40, dtype=dtype, seed=1)
    weight, out = normal(40, dtype=dtype, seed=2), poison(m, 40, dtype=dtype)
    total = (residual.double() + delta.double()).to(dtype)
    ops.add_rmsnorm(residual, delta, Norm(weight, EPS, centered), out)()
    assert torch.equal(residual, total)
    assert_close(out, reference.rmsnorm(exact(total), exact(weight) + centered, EPS), 2)


@each_type
@rows
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3.5"])
def test_qk_norm_rope_cache(ops, reference, dtype, m, family):
    """Views into a fused buffer; one launch at two contexts fills their places and no others.

    Qwen3.5: gates between the query heads, centered norms, and a quarter of a head turns.
    """
    heads, kv_heads, d, max_context, hybrid = 6, 2, 32, 23, family == "qwen3.5"
    widths = [heads * d * (2 if hybrid else 1), kv_heads * d, kv_heads * d]
    qkv = normal(m, sum(widths), dtype=dtype)
    q, k, v = (
        part.view(m, n, -1) for part, n in zip(qkv.split(widths, dim=1), (heads, kv_heads, kv_heads), strict=True)
    )
    q = q[:, :, :d]
    q_norm, k_norm = (None if family == "llama" else Norm(normal(d, dtype=dtype, seed=s), EPS, hybrid) for s in (1, 2))
    angles = torch.rand(max_context, d // 8 if hybrid else d // 2, generator=torch.Generator().manual_seed(3)) * 7
    cosine, sine, context = angles.cos(), angles.sin(), torch.tensor([0])
    q_out = poison(m, heads, d, dtype=dtype)
    k_cache, v_cache = (poison(kv_heads, max_context, d, dtype=dtype) for _ in range(2))
    launch = ops.qk_norm_rope_cache(q, k, v, q_norm, k_norm, cosine, sine, context, q_out, k_cache, v_cache)

    def rotated(x, norm, places):
        x = exact(x) if norm is None else reference.rmsnorm(exact(x), exact(norm.weight) + norm.centered, EPS)
        return reference.rotate(x, exact(cosine[places]), exact(sine[places]))

    filled = set()
    for value in (m, 19):
        places = slice(value - m, value)
        filled |= set(range(value - m, value))
        context.fill_(value)
        launch()
        assert_close(q_out, rotated(q, q_norm, places), 3, size=5)
        assert_close(k_cache[:, places], rotated(k, k_norm, places).transpose(1, 0, 2), 3, size=5)
        assert torch.equal(v_cache[:, places], v.transpose(0, 1))
    for cache in (k_cache, v_cache):
        assert [i for i in range(max_context) if not cache[:, i].isnan().all()] == sorted(filled)


@each_type
@rows
def test_silu_mul(ops, reference, dtype, m):
    """Gate and up lie side by side in a fused buffer."""
    gate, up = normal(m, 80, dtype=dtype).chunk(2, dim=1)
    out = poison(m, 40, dtype=dtype)
    ops.silu_mul(gate, up, out)()
    assert_close(out, reference.silu_mul(exact(gate), exact(up)), 3)


@each_type
@rows
def test_sigmoid_mul(ops, reference, dtype, m):
    """A row's gates lie behind its heads' queries."""
    x, gate = normal(m, 3, 24, dtype=dtype), normal(m, 3, 48, dtype=dtype)[:, :, 24:]
    expected = reference.sigmoid_mul(exact(x), exact(gate))
    ops.sigmoid_mul(x, gate)()
    assert_close(x, expected, 3)


@each_type
@pytest.mark.parametrize("best", [(7,), (7, 1500), (0, 1999), (1999,)])
def test_argmax(ops, dtype, best):
    """The first of equals; and the launch reads the logits anew."""
    logits, token = normal(2000, dtype=dtype), torch.tensor([-1])
    launch = ops.argmax(logits, token)
    for value in (50.0, torch.nan):
        logits[list(best)] = value
        launch()
        assert token.item() == best[0]


def test_a_launch_keeps_its_tensors_alive(ops):
    out = poison(1, 64, dtype=torch.float32)
    launch = ops.rmsnorm(torch.full((1, 64), 2.0), Norm(torch.full((64,), 3.0), 0.0), out)
    gc.collect()
    taken = [torch.full((64,), torch.nan) for _ in range(8)]  # would take the freed places
    launch()
    assert len(taken) == 8 and torch.equal(out, torch.full((1, 64), 3.0))


@pytest.mark.parametrize("fault", ["another type", "a stride"])
def test_kernels_refuse_what_they_would_misread(cpu_pool, fault):
    x, out = torch.zeros(1, 8), torch.zeros(1, 8)
    weight = torch.zeros(8, dtype=torch.bfloat16) if fault == "another type" else torch.zeros(16)[::2]
    with pytest.raises(ValueError, match="the kernel takes contiguous"):
        CpuElementwise(Executor(CPU, cpu_pool)).rmsnorm(x, Norm(weight, EPS), out)


@pytest.mark.parametrize(
    "requested, device, dtype, expected",
    [
        ("auto", CPU, "BF16", CpuElementwise),
        ("auto", CPU, "F16", TorchElementwise),
        ("auto", GPU, "BF16", TorchElementwise),
        ("torch", CPU, "BF16", TorchElementwise),
        ("cpu", CPU, "F32", CpuElementwise),
    ],
)
def test_choice(requested, device, dtype, expected):
    assert type(choose_elementwise(requested, Executor(device), dtype)) is expected


def test_refusals():
    with pytest.raises(UnavailableError, match="no CPU kernel for F16"):
        choose_elementwise("cpu", Executor(CPU), "F16")
    with pytest.raises(UnavailableError, match="elementwise is triton, but it is a Triton kernel, the device is cpu"):
        choose_elementwise("triton", Executor(CPU), "F32")
    with pytest.raises(UnavailableError, match="elementwise is triton, but there is no Triton kernel for F64"):
        choose_elementwise("triton", Executor(GPU), "F64")
    with pytest.raises(ConfigError, match="allowed: auto, torch, cpu, triton"):
        choose_elementwise("tritton", Executor(CPU), "F32")


def test_advance(ops):
    context = torch.tensor([41])
    ops.advance(context, 512)()
    assert context.tolist() == [553]
