"""Every attention backend against float64, through the protocol that engines use."""

import math

import pytest

torch = pytest.importorskip("torch")

from harness.backends.attention.torch_sdpa import bind_masked  # noqa: E402  # behind the skip
from harness.backends.base import BlockCache, Executor  # noqa: E402
from harness.backends.registry import attention_backends  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import AttentionProblem  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
GPU = DeviceInfo(kind="cuda", name="a test's GPU")
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
# torch rounds softmax's weights to bf16 before it multiplies the values; our kernel keeps them.
TOLERANCE = {"BF16": 0.02, "F32": 2e-5}
PLACES = 160

each_backend = pytest.mark.parametrize("name", ["cpu-decode", "torch-sdpa"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def make(m=1, group=2, head_dim=64, dtype="F32", kv_heads=2) -> AttentionProblem:
    return AttentionProblem(
        m=m,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_context=PLACES,
        dtype=dtype,
    )


def tensors(problem: AttentionProblem, context: int, beyond: float):
    """q, caches with `beyond` in the places that are not filled, and a poisoned output."""
    random = torch.Generator().manual_seed(context)
    dtype = DTYPES[problem.dtype]
    q = torch.randn((problem.m, problem.num_heads, problem.head_dim), generator=random).to(dtype)
    caches = torch.randn((2, problem.num_kv_heads, PLACES, problem.head_dim), generator=random).to(dtype)
    caches[:, :, context:] = beyond
    return q, *caches, torch.full_like(q, torch.nan)


def expected(q, k_cache, v_cache, context):
    """Query i of m sees the first context - m + 1 + i places; one query and head at a time."""
    m, heads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=torch.float64)
    for i in range(m):
        for head in range(heads):
            places, key_head = context - m + 1 + i, head // (heads // len(k_cache))
            keys, values = (cache[key_head, :places].double() for cache in (k_cache, v_cache))
            weights = torch.softmax(keys @ q[i, head].double() / math.sqrt(head_dim), dim=0)
            out[i, head] = weights @ values
    return out


def check(name, problem, context, pool):
    backend = attention_backends.get(name)
    assert backend.supports(problem, CPU).ok
    q, k_cache, v_cache, out = tensors(problem, context, torch.nan)
    filled = torch.tensor([context])
    backend(Executor(CPU, pool)).bind(q, k_cache, v_cache, filled, out, problem)()
    reference = expected(q, k_cache, v_cache, context)
    torch.testing.assert_close(out.double(), reference, rtol=0, atol=TOLERANCE[problem.dtype])


@each_backend
@each_dtype
@pytest.mark.parametrize("context", [1, 2, 33, 127, 128, 129, PLACES])
def test_decode(name, dtype, context, cpu_pool):
    check(name, make(dtype=dtype), context, cpu_pool)


@each_backend
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("head_dim", [32, 80, 128, 256])
def test_shapes(name, group, head_dim, cpu_pool):
    check(name, make(group=group, head_dim=head_dim), 70, cpu_pool)


@each_dtype
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("context", [1, 32, 100])
def test_a_cache_in_blocks(dtype, block_size, context, cpu_pool):
    """As on a whole cache, whose blocks lie backwards here, also when what it was bound to has moved."""
    problem, blocks = make(dtype=dtype), PLACES // block_size
    q, k_cache, v_cache, out = tensors(problem, context, torch.nan)
    both = torch.stack((k_cache, v_cache), 1).view(2, 2, blocks, block_size, 64).permute(2, 0, 1, 3, 4).flip(0)
    both = both.contiguous()
    table = torch.arange(blocks - 1, -1, -1, dtype=torch.int32)
    cache = BlockCache(both[:, :, 0], both[:, :, 1], torch.zeros_like(table))
    before = torch.zeros_like(q), torch.zeros_like(out)
    backend = attention_backends.get("cpu-decode")(Executor(CPU, cpu_pool))
    launch = backend.bind_blocks(before[0], cache, torch.tensor([context]), before[1], problem)
    launch.mover(before[0], before[1], cache.table)(q.data_ptr(), out.data_ptr(), table.data_ptr())
    reference = expected(q, k_cache, v_cache, context)
    torch.testing.assert_close(out.double(), reference, rtol=0, atol=TOLERANCE[dtype])
    assert not before[1].any()


def test_a_backend_says_that_it_takes_no_blocks():
    backend, q = attention_backends.get("torch-sdpa"), torch.zeros(1, 4, 64)
    assert not backend.takes_blocks
    with pytest.raises(NotImplementedError, match="torch-sdpa takes a contiguous cache"):
        backend(Executor(CPU)).bind_blocks(q, BlockCache(q, q, q), q, q, make())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, context", [(2, 2), (5, 5), (5, 6), (16, 120), (40, 40)])
def test_prefill_chunks_are_causal(dtype, m, context, cpu_pool):
    check("torch-sdpa", make(m=m, dtype=dtype), context, cpu_pool)


@pytest.mark.parametrize("m, context", [(1, 1), (1, 97), (4, 4), (4, 50), (4, PLACES)])
@pytest.mark.parametrize("group", [1, 3])
def test_masked_over_the_whole_cache(m, context, group):
    """What runs on a GPU: places behind the context are read, finite, and weigh nothing."""
    q, k_cache, v_cache, out = tensors(make(m=m, group=group), context, 1e4)
    bind_masked(q, k_cache, v_cache, torch.tensor([context]), out)()
    torch.testing.assert_close(out.double(), expected(q, k_cache, v_cache, context), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["cpu-decode", "torch-sdpa", "torch-sdpa, masked"])
def test_the_context_is_read_when_the_launch_runs(name, cpu_pool):
    problem, context = make(), torch.tensor([0])
    q, k_cache, v_cache, out = tensors(problem, PLACES, 0.0)
    if name == "torch-sdpa, masked":
        launch = bind_masked(q, k_cache, v_cache, context, out)
    else:
        backend = attention_backends.get(name)(Executor(CPU, cpu_pool))
        launch = backend.bind(q, k_cache, v_cache, context, out, problem)
    for filled in (3, 100, 7):
        context.fill_(filled)
        assert launch() is None
        torch.testing.assert_close(out.double(), expected(q, k_cache, v_cache, filled), rtol=0, atol=2e-5)


def test_read_bytes():
    """Both caches, all key heads, 64 x 4 bytes a place; the masked read of a GPU goes over all places."""
    problem = make()
    place_bytes = 2 * 2 * 64 * 4
    for name in ("cpu-decode", "torch-sdpa"):
        assert attention_backends.get(name)(Executor(CPU)).read_bytes(problem, 10) == 10 * place_bytes
    assert attention_backends.get("torch-sdpa")(Executor(GPU)).read_bytes(problem, 10) == PLACES * place_bytes


@pytest.mark.parametrize(
    "name, changes, device, why",
    [
        ("cpu-decode", {"m": 2}, CPU, "one query"),
        ("cpu-decode", {"group": 17}, CPU, "34 heads"),
        ("cpu-decode", {"head_dim": 72}, CPU, "72"),
        ("cpu-decode", {"head_dim": 512}, CPU, "512"),
        ("cpu-decode", {"dtype": "F16"}, CPU, "F16"),
        ("cpu-decode", {}, GPU, "cuda"),
        ("torch-sdpa", {"dtype": "F8_E4M3"}, CPU, "F8_E4M3"),
    ],
)
def test_refusals_say_why_and_what_to_do(name, changes, device, why):
    support = attention_backends.get(name).supports(make(**changes), device)
    assert not support.ok and why in support.why and support.mend


@pytest.mark.parametrize("name", ["cpu-decode", "torch-sdpa"])
def test_heads_that_do_not_divide_are_refused(name):
    problem = AttentionProblem(m=1, num_heads=5, num_kv_heads=2, head_dim=64, max_context=8, dtype="F32")
    assert "5 heads" in attention_backends.get(name).supports(problem, CPU).why


@pytest.mark.parametrize("m, device, name", [(1, CPU, "cpu-decode"), (2, CPU, "torch-sdpa"), (1, GPU, "torch-sdpa")])
def test_auto(m, device, name):
    assert attention_backends.choose("auto", make(m=m), device).backend.name == name
