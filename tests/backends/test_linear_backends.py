"""Every linear backend against float64, through the protocol that engines use."""

import gc

import pytest

torch = pytest.importorskip("torch")

from harness.backends.base import Executor  # noqa: E402  # behind the skip
from harness.backends.linear import torch_widened  # noqa: E402
from harness.backends.registry import linear_backends  # noqa: E402
from harness.errors import ConfigError, UnavailableError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU = DeviceInfo(kind="cpu", name="a test's CPU")
GPU = DeviceInfo(kind="cuda", name="a test's GPU")
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-23}
BACKENDS = ["cpu-gemv", "torch", "torch-mv"]

each_backend = pytest.mark.parametrize("name", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def tensors(problem: LinearProblem):
    """x, weight and bias (or None), random."""
    random = torch.Generator().manual_seed(problem.k)
    shapes = ((problem.m, problem.k), (problem.n, problem.k), (problem.n,))
    x, weight, bias = (torch.randn(shape, generator=random).to(DTYPES[problem.dtype]) for shape in shapes)
    return x, weight, bias if problem.bias else None


def expected(x, weight, bias):
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def assert_product(out, x, weight, bias, *, rounding=None):
    """Within the output's rounding, and the accumulation's in fp32 (any order: error grows like sqrt(k))."""
    reference = expected(x, weight, bias)
    terms = x.double().abs() @ weight.double().abs().T
    tolerance = reference.abs() * (rounding or ROUNDING[out.dtype]) + 4 * x.shape[1] ** 0.5 * 2.0**-24 * terms
    wrong = ~((out.double() - reference).abs() <= tolerance)
    assert not wrong.any(), f"first at {wrong.nonzero()[0].tolist()} of {list(out.shape)}"


def bound(name: str, problem: LinearProblem, pool, x, weight, bias, out):
    """A launch of a backend that says it can."""
    backend = linear_backends.get(name)
    assert backend.supports(problem, CPU).ok
    backend = backend(Executor(CPU, pool))
    return backend.bind(x, backend.prepare(weight, bias, problem), out)


SHAPES = [(1, 48, 64), (1, 33, 31), (1, 1, 1), (4, 33, 100), (8, 17, 65), (40, 16, 48)]
MAX_ROWS = {"cpu-gemv": 8, "torch": 40, "torch-mv": 1}


@pytest.mark.parametrize("name, shape", [(b, s) for b in BACKENDS for s in SHAPES if s[0] <= MAX_ROWS[b]])
@each_dtype
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_product(name, dtype, shape, bias, cpu_pool):
    m, n, k = shape
    problem = LinearProblem(m=m, n=n, k=k, dtype=dtype, bias=bias)
    x, weight, b = tensors(problem)
    out = torch.full((m, n), torch.nan, dtype=DTYPES[dtype])
    bound(name, problem, cpu_pool, x, weight, b, out)()
    assert_product(out, x, weight, b)


@each_dtype
def test_layers_of_different_widths_share_scratch(dtype, cpu_pool, monkeypatch):
    """A layer's own would be larger than a narrow weight: an A/B, which binds thousands, would take it for a copy. A
    wider layer must not take it from under one that was bound before."""
    made, backend = [], linear_backends.get("cpu-gemv")(Executor(CPU, cpu_pool))
    monkeypatch.setattr(torch, "empty", lambda *size, new=torch.empty, **how: made.append(size) or new(*size, **how))
    layers = []
    for k in (64, 200, 64, 32, 200):
        problem = LinearProblem(m=3, n=12, k=k, dtype=dtype)
        x, weight, _ = tensors(problem)
        out = torch.full((3, 12), torch.nan, dtype=DTYPES[dtype])
        layers.append((backend.bind(x, backend.prepare(weight, None, problem), out), out, x, weight))
    assert made == [(3 * 64,), (3 * 224,)]
    for launch, out, x, weight in layers * 2:
        out.fill_(torch.nan)
        launch()
        assert_product(out, x, weight, None)


@pytest.mark.parametrize("name, m", [("cpu-gemv", 3), ("torch-widened", 9)])
def test_scratch_is_fp32_whatever_the_default_is(name, m, monkeypatch):
    """vLLM builds models under bf16 as the default: half the memory that the kernel writes to."""
    made = []
    monkeypatch.setattr(
        torch, "empty", lambda *size, new=torch.empty, **how: made.append(new(*size, **how)) or made[-1]
    )
    problem = LinearProblem(m=m, n=24, k=64, dtype="BF16")
    x, weight, _ = tensors(problem)
    out = torch.full((m, 24), torch.nan, dtype=torch.bfloat16)
    backend = linear_backends.get(name)(Executor(CPU))
    torch.set_default_dtype(torch.bfloat16)
    try:
        backend.bind(x, backend.prepare(weight, None, problem), out)()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {tensor.dtype for tensor in made} == {torch.float32}
    assert_product(out, x, weight, None)


def test_settings_that_make_no_difference_are_not_tried():
    tiles, backend = (
        DeviceInfo(kind="cpu", name="a test's CPU", features=("amx_bf16",)),
        linear_backends.get("cpu-gemv"),
    )
    names = {
        (device is tiles, m, dtype): {name for setting in backend.tuning(problem, device) for name in setting}
        for device in (CPU, tiles)
        for m in (1, 2)
        for dtype in DTYPES
        for problem in [LinearProblem(m=m, n=8, k=64, dtype=dtype)]
    }
    assert {case for case, found in names.items() if found == {"prefetch_bytes"}} == {(True, 2, "BF16")}
    assert set.union(*names.values()) == {"num_streams", "prefetch_bytes"}


def test_it_and_a_library_multiply_in_turns(cpu_pool):
    """Both may use a thread's tiles (kernels/tiles.h), whose shapes each must set for itself."""
    launches = []
    for name, m, pool in (
        ("cpu-gemv", 3, cpu_pool),
        ("torch", 64, cpu_pool),
        ("cpu-gemv", 8, None),
        ("torch", 16, None),
    ):
        problem = LinearProblem(m=m, n=192, k=320, dtype="BF16")
        x, weight, _ = tensors(problem)
        out = torch.empty((m, 192), dtype=torch.bfloat16)
        launches.append((bound(name, problem, pool, x, weight, None, out), out, x, weight))
    for launch, out, x, weight in launches * 3:
        out.fill_(torch.nan)
        launch()
        assert_product(out, x, weight, None)


def test_a_launch_moves_to_other_buffers(cpu_pool):
    """The product of what lies there now, written there; the buffers it was bound with keep theirs."""
    problem = LinearProblem(m=3, n=24, k=64, dtype="BF16")
    x, weight, _ = tensors(problem)
    out = torch.full((3, 24), torch.nan, dtype=torch.bfloat16)
    launch = bound("cpu-gemv", problem, cpu_pool, x, weight, None, out)
    move = launch.mover(x, out)
    for scale in (2, 3):
        elsewhere, there = x * scale, torch.full((3, 24), torch.nan, dtype=torch.bfloat16)
        move(elsewhere.data_ptr(), there.data_ptr())
        assert_product(there, elsewhere, weight, None)
    assert out.isnan().all()


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name, m", [("cpu-gemv", 1), ("cpu-gemv", 3), ("torch", 1), ("torch", 3), ("torch-mv", 1)])
def test_strided_output(name, m, bias):
    """A part of a fused buffer's rows: the rest stays as it was. No pool: the calling thread does it."""
    problem = LinearProblem(m=m, n=24, k=64, dtype="BF16", bias=bias)
    x, weight, b = tensors(problem)
    buffer = torch.full((m, 40), torch.nan, dtype=torch.bfloat16)
    bound(name, problem, None, x, weight, b, buffer[:, 8:32])()
    assert_product(buffer[:, 8:32], x, weight, b)
    assert buffer[:, :8].isnan().all() and buffer[:, 32:].isnan().all()


@each_backend
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_float_output_of_bf16(name, bias, cpu_pool):
    """Logits in fp32: our kernel gives its fp32 sums, torch the rounded ones."""
    problem = LinearProblem(m=1, n=70, k=64, dtype="BF16", bias=bias)
    x, weight, b = tensors(problem)
    out = torch.full((1, 70), torch.nan)
    bound(name, problem, cpu_pool, x, weight, b, out)()
    assert_product(out, x, weight, b, rounding=None if name == "cpu-gemv" else 2.0**-8)


@each_backend
def test_a_launch_reads_its_buffers_anew_and_keeps_them_alive(name, cpu_pool):
    problem = LinearProblem(m=1, n=16, k=32, dtype="F32", bias=True)
    x, out = torch.zeros(1, 32), torch.empty(1, 16)
    _, weight, bias = tensors(problem)
    kept = weight.clone(), bias.clone()
    launch = bound(name, problem, cpu_pool, x, weight, bias, out)
    del weight, bias
    gc.collect()
    torch.full((16, 32), torch.nan)  # would take the freed place
    for seed in range(3):
        x.copy_(torch.randn(1, 32, generator=torch.Generator().manual_seed(seed)))
        assert launch() is None
        assert_product(out, x, *kept)


@each_backend
def test_nothing_is_copied(name, cpu_pool):
    """contest_legal: what the packed layer holds is what was loaded."""
    problem = LinearProblem(m=1, n=16, k=32, dtype="BF16", bias=True)
    _, weight, bias = tensors(problem)
    packed = linear_backends.get(name)(Executor(CPU, cpu_pool)).prepare(weight, bias, problem)
    assert packed.weight is weight and packed.bias is bias


@each_backend
def test_read_bytes(name, cpu_pool):
    backend = linear_backends.get(name)(Executor(CPU, cpu_pool))
    for bias, bytes_read in ((False, 16 * 32 * 2), (True, 16 * 32 * 2 + 16 * 2)):
        problem = LinearProblem(m=1, n=16, k=32, dtype="BF16", bias=bias)
        assert backend.read_bytes(backend.prepare(*tensors(problem)[1:], problem), 1) == bytes_read


WRONG = {
    "shape": lambda weight, bias: (weight.T.contiguous(), bias),
    "type": lambda weight, bias: (weight.float(), bias),
    "layout": lambda weight, bias: (weight.T.contiguous().T, bias),
    "no bias": lambda weight, bias: (weight, None),
    "bias shape": lambda weight, bias: (weight, bias[:3]),
}


@each_backend
@pytest.mark.parametrize("fault", WRONG)
def test_prepare_refuses_what_the_problem_does_not_say(name, fault, cpu_pool):
    problem = LinearProblem(m=1, n=16, k=32, dtype="BF16", bias=True)
    _, weight, bias = tensors(problem)
    with pytest.raises(ConfigError, match="the problem says"):
        linear_backends.get(name)(Executor(CPU, cpu_pool)).prepare(*WRONG[fault](weight, bias), problem)


@pytest.mark.parametrize(
    "name, changes, device, why",
    [
        ("cpu-gemv", {"m": 9}, CPU, "9 rows"),
        ("cpu-gemv", {"dtype": "F16"}, CPU, "F16"),
        ("cpu-gemv", {}, GPU, "cuda"),
        ("torch-mv", {"m": 2}, CPU, "one row"),
        ("torch", {"dtype": "F8_E4M3"}, CPU, "F8_E4M3"),
    ],
)
def test_refusals_say_why_and_what_to_do(name, changes, device, why):
    problem = LinearProblem(**{"m": 1, "n": 16, "k": 32, "dtype": "BF16", **changes})
    support = linear_backends.get(name).supports(problem, device)
    assert not support.ok and why in support.why and support.mend


def test_without_a_compiler_auto_takes_torch(monkeypatch):
    def none_here():
        raise UnavailableError("no C++ compiler is on the PATH", "install g++")

    monkeypatch.setattr("harness.backends.launch.find_compiler", none_here)
    monkeypatch.setattr(torch_widened, "multiplies", lambda dtype: True)
    problem = LinearProblem(m=1, n=16, k=32, dtype="BF16")
    assert linear_backends.choose("auto", problem, CPU).backend.name == "torch"
    choice = linear_backends.choose("cpu-gemv", problem, CPU)
    assert choice.backend.name == "torch" and "no C++ compiler" in choice.fallback_reason


@pytest.mark.parametrize(
    "m, device, multiplies, name",
    [
        (1, CPU, True, "cpu-gemv"),
        (8, CPU, False, "cpu-gemv"),
        (9, CPU, True, "torch"),
        (9, CPU, False, "torch-widened"),
        (1, CPU, False, "cpu-gemv"),
        (1, GPU, False, "torch"),
    ],
)
def test_auto(m, device, multiplies, name, monkeypatch):
    """multiplies: whether the CPU has the type's arithmetic."""
    monkeypatch.setattr(torch_widened, "multiplies", lambda dtype: multiplies)
    problem = LinearProblem(m=m, n=16, k=32, dtype="BF16")
    assert linear_backends.choose("auto", problem, device).backend.name == name
