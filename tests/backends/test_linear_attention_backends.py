"""Every linear-attention backend against float64, through the protocol that engines use."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import DeltaInputs, DeltaState, DeltaWeights, Executor  # noqa: E402  # behind the skip
from harness.backends.registry import linear_attention_backends  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import DeltaProblem  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
GPU = DeviceInfo(kind="cuda", name="a test's GPU")
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
TOLERANCE = {"BF16": 0.03, "F32": 2e-6}
"""Of the norm of all errors to that of all values: single ones are small sums of large, rounded parts."""

each_backend = pytest.mark.parametrize("name", ["cpu-recurrent", "torch-recurrent"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def make(m=1, key_heads=2, group=2, key_dim=32, value_dim=48, taps=4, dtype="F32") -> DeltaProblem:
    return DeltaProblem(
        m=m, num_key_heads=key_heads, num_value_heads=key_heads * group, key_head_dim=key_dim,
        value_head_dim=value_dim, conv_kernel=taps, dtype=dtype,
    )  # fmt: skip


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def tensors(p: DeltaProblem):
    """Inputs as rows of one fused buffer with a gap behind, weights, and a state that earlier tokens left."""
    dtype, heads = DTYPES[p.dtype], p.num_value_heads
    widths = [p.conv_channels, heads * p.value_head_dim, heads, heads, 3]
    fused = normal(p.m, sum(widths), dtype=dtype, seed=1)
    weights = DeltaWeights(
        conv=normal(p.conv_channels, p.conv_kernel, dtype=dtype, seed=2) * 0.5,
        a_log=normal(heads, seed=3),
        dt_bias=normal(heads, seed=4),
        norm=1 + normal(p.value_head_dim, dtype=dtype, seed=5) * 0.1,
        eps=1e-6,
    )
    state = DeltaState(
        conv=normal(p.conv_kernel - 1, p.conv_channels, dtype=dtype, seed=6),
        recurrent=normal(heads, p.key_head_dim, p.value_head_dim, seed=7) * 0.3,
    )
    return DeltaInputs(*fused.split(widths, dim=1)[:4]), weights, state


def run(name, p, inputs, weights, state, pool):
    """The output, on a poisoned buffer; the state is changed in place."""
    backend = linear_attention_backends.get(name)
    assert backend.supports(p, CPU).ok
    out = torch.full((p.m, p.num_value_heads * p.value_head_dim), torch.nan, dtype=DTYPES[p.dtype])
    backend(Executor(CPU, pool)).bind(inputs, weights, state, out, p)()
    return out


def exact(tensor):
    return tensor.double().numpy()


def expected(reference, p, inputs, weights, state):
    norm = None if weights.norm is None else exact(weights.norm)
    parts = reference.Weights(*map(exact, (weights.conv, weights.a_log, weights.dt_bias)), norm, weights.eps)
    rows = map(exact, (inputs.qkv, inputs.z, inputs.b, inputs.a))
    return reference.gated_delta(*rows, parts, exact(state.conv), exact(state.recurrent), p.num_key_heads)


def assert_near(found, expected, dtype):
    error = found.double().view(expected.shape) - torch.from_numpy(expected)
    assert error.norm() <= TOLERANCE[dtype] * torch.from_numpy(expected).norm()
    assert error.abs().max() <= 20 * TOLERANCE[dtype] * abs(expected).max()


def check(name, p, pool, kernel_reference):
    inputs, weights, state = tensors(p)
    kept = [tensor.clone() for tensor in (inputs.qkv, weights.conv, weights.norm)]
    out, conv, recurrent = expected(kernel_reference("gated_delta_rule"), p, inputs, weights, state)
    assert_near(run(name, p, inputs, weights, state, pool), out, p.dtype)
    assert_near(state.recurrent, recurrent, p.dtype)
    assert torch.equal(state.conv.double(), torch.from_numpy(conv)), "the last inputs as they are"
    assert all(map(torch.equal, kept, (inputs.qkv, weights.conv, weights.norm))), "inputs and weights untouched"


@each_backend
@each_dtype
@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_tokens(name, dtype, m, cpu_pool, kernel_reference):
    """Fewer, as many, and more than the convolution's state holds."""
    check(name, make(m=m, dtype=dtype), cpu_pool, kernel_reference)


@each_backend
@each_dtype
@pytest.mark.parametrize("key_heads, group", [(1, 1), (1, 4), (3, 1), (5, 3), (16, 2)])
def test_heads(name, dtype, key_heads, group, cpu_pool, kernel_reference):
    check(name, make(m=2, key_heads=key_heads, group=group, dtype=dtype), cpu_pool, kernel_reference)


@each_backend
@each_dtype
@pytest.mark.parametrize(
    "key_dim, value_dim, taps", [(16, 16, 4), (128, 128, 4), (64, 256, 2), (256, 144, 4), (32, 32, 1)]
)
def test_sizes(name, dtype, key_dim, value_dim, taps, cpu_pool, kernel_reference):
    p = make(m=2, key_dim=key_dim, value_dim=value_dim, taps=taps, dtype=dtype)
    check(name, p, cpu_pool, kernel_reference)


@each_backend
@each_dtype
def test_an_engine_norms_itself(name, dtype, cpu_pool, kernel_reference):
    """Without a norm the output is the rule's own, and gates are not looked at."""
    assert linear_attention_backends.get(name).norm_is_optional
    p = make(m=3, dtype=dtype)
    inputs, weights, state = tensors(p)
    inputs, weights = replace(inputs, z=torch.full_like(inputs.z, torch.nan)), replace(weights, norm=None)
    out, _, recurrent = expected(kernel_reference("gated_delta_rule"), p, inputs, weights, state)
    assert_near(run(name, p, inputs, weights, state, cpu_pool), out, dtype)
    assert_near(state.recurrent, recurrent, dtype)


@each_backend
def test_many_tokens_at_once_are_one_after_another(name, cpu_pool):
    """Exactly: the state is carried by the same arithmetic."""
    p = make(m=7)
    inputs, weights, state = tensors(p)
    copy = DeltaState(state.conv.clone(), state.recurrent.clone())
    at_once = run(name, p, inputs, weights, state, cpu_pool)
    rows = [DeltaInputs(*(part[t : t + 1] for part in vars(inputs).values())) for t in range(p.m)]
    one_by_one = torch.cat([run(name, make(m=1), row, weights, copy, cpu_pool) for row in rows])
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state.recurrent, copy.recurrent, rtol=1e-5, atol=1e-6)
    assert torch.equal(state.conv, copy.conv)


@each_backend
def test_a_decay_to_nothing_and_none_at_all(name, cpu_pool, kernel_reference):
    """softplus far out on both sides: the state is forgotten at once, or kept whole."""
    p = make(m=1)
    inputs, weights, state = tensors(p)
    inputs.a[:, 0], inputs.a[:, 1] = 60.0, -60.0
    out, _, recurrent = expected(kernel_reference("gated_delta_rule"), p, inputs, weights, state)
    assert_near(run(name, p, inputs, weights, state, cpu_pool), out, "F32")
    assert_near(state.recurrent, recurrent, "F32")


@pytest.mark.parametrize(
    "problem, words",
    [
        (make(key_dim=24), "key_head_dim 24"),
        (make(value_dim=272), "value_head_dim 272"),
        (make(dtype="F16"), "F16"),
        (make().model_copy(update={"num_value_heads": 3}), "3 value heads"),
    ],
)
def test_what_the_kernel_can_not(problem, words):
    support = linear_attention_backends.get("cpu-recurrent").supports(problem, CPU)
    assert not support.ok
    assert words in support.why
    assert support.mend


def test_the_kernel_is_for_cpus():
    assert not linear_attention_backends.get("cpu-recurrent").supports(make(), GPU).ok
    assert linear_attention_backends.choose("auto", make(), GPU).backend.name == "torch-recurrent"
    assert linear_attention_backends.choose("auto", make(), CPU).backend.name == "cpu-recurrent"


def test_heads_that_do_not_divide_are_nobodys():
    problem = make().model_copy(update={"num_value_heads": 3})
    assert not linear_attention_backends.get("torch-recurrent").supports(problem, CPU).ok


@each_backend
def test_bytes_by_hand(name):
    """4 heads of 32 x 48 in fp32; 2 x 2 x 32 + 4 x 48 channels of 4 weights and 3 inputs in bf16."""
    backend = linear_attention_backends.get(name)(Executor(CPU))
    assert backend.read_bytes(make(dtype="BF16")) == 4 * 32 * 48 * 4 + (128 + 192) * 7 * 2
