"""Every Triton kernel compiles for each kind of card, without spills, and streams in loads of 128 bits."""

import inspect
from pathlib import Path

import pytest
from cases import CASES, Case, empty, gemv
from offline import TARGETS, Call, calls_of, compile_for

# gfx906 multiplies without matrix cores, and LLVM wants a whole row and column of 128 or 256 in registers for that: no
# tile and number of warps leaves room for a head of 256. It runs all the same, and an A/B measures at what cost.
ALLOWED_SPILLS = {
    ("delta rule chunks plain", "chunks"): 80,
    ("decode plain head 256", "attend"): 120,
    ("decode paged plain head 256", "attend"): 112,
    ("prefill plain head 256", "attend"): 122,
}


def check(case: Case, target: str, case_name: str = "") -> None:
    calls = calls_of(case.launch)
    assert calls, "nothing was launched"
    for call in calls:
        name = call.kernel.__name__
        compiled = compile_for(call, target)
        allowed = ALLOWED_SPILLS.get((case_name, name), 0)
        assert compiled.spilled <= allowed, f"{name} spills {compiled.spilled} on {target}"
        assert not any(line == 0 for _, line in compiled.loads), f"{name} on {target}: loads of no line"
        for text, num_bytes in case.streams.get(name, {}).items():
            share = num_bytes // compiled.lanes
            found, width = compiled.loads.get(line_of(call, text), []), min(16, share)
            are_all = len(found) >= share // width and min(found) >= width
            assert are_all, f"{name} on {target}: {text} has {found}, not {share} bytes in wide loads of {width}"


def line_of(call: Call, text: str) -> tuple[str, int]:
    """(file, line) of the kernel's source where it says so: a stream's loads are told from others by that."""
    file = Path(inspect.getsourcefile(call.kernel.fn))
    lines = [number for number, line in enumerate(file.read_text().splitlines(), start=1) if text in line]
    assert len(lines) == 1, f"{file.name} has {text!r} on lines {lines}"
    return file.name, lines[0]


@pytest.mark.parametrize(
    "name, target", [(name, target) for name, case in CASES.items() for target in TARGETS if target in case[2]]
)
def test_it_compiles_without_spills_and_with_wide_loads(name, target):
    from harness.triton_kernels import load_triton

    op, make, _ = CASES[name]
    check(make(load_triton(op)), target, name)


def test_every_kernel_is_in_a_case():
    """A helper that a kernel calls is part of it: only what is launched has a grid."""
    from triton.runtime.jit import JITFunction

    from harness.resources import kernels_dir
    from harness.triton_kernels import load_triton

    for op in {op for op, _, _ in CASES.values()}:
        cases = [make(load_triton(op)) for case_op, make, _ in CASES.values() if case_op == op]
        launched = {call.kernel.__name__ for case in cases for call in calls_of(case.launch)}
        modules = [load_triton(op, file.name) for file in (kernels_dir() / op).glob("triton_*.py")]
        kernels = {name for module in modules for name, value in vars(module).items() if isinstance(value, JITFunction)}
        assert launched == kernels - HELPERS.get(op, set())


HELPERS = {
    "decode_attention": {"scores_of", "weighted_sum", "rows_of", "softmax_step", "attended"},
    "elementwise": {"scaled", "normed_and_turned"},
    "gated_delta_rule": {
        "inputs_at", "remember", "log_decay", "betas", "units", "chunk_of", "decays_between",
    },
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, index, dtype", [(2, 9, "float32"), (8, 0, "bfloat16")], ids=["fp32 split", "eight rows"])
def test_a_planted_narrow_load_shows(m, index, dtype, target):
    """A row stride that is no multiple of 16 leaves the weight's addresses unaligned, and x's loads as they are."""
    from harness.triton_kernels import load_triton

    with pytest.raises(AssertionError, match="wide loads"):
        check(gemv(load_triton("gemv"), m, index, stride=5121, dtype=dtype), target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_planted_spill_shows(target):
    """Eight rows of x on a tile of 64 weights a lane (128 of 32 lanes) are 512 accumulators and more."""
    from harness.triton_kernels import load_triton

    kernels = load_triton("gemv")
    config = kernels.Config(16, 1024, 1, 4, ".cg")
    launch = kernels.bind_gemv(empty(8, 5120), empty(34816, 5120), None, empty(8, 34816), config)
    with pytest.raises(AssertionError, match="gemv spills"):
        check(Case(launch, {}), target)


@pytest.mark.parametrize("target", ["sm_90", "gfx906", "gfx90a"])
def test_no_offered_gemv_spills(target):
    """Of each number of rows the tiles with the most accumulators: the others are the same code with fewer."""
    from harness.backends.linear.triton_gemv import TritonGemv
    from harness.specs.device import DeviceInfo
    from harness.specs.problem import LinearProblem
    from harness.triton_kernels import load_triton

    kernels = load_triton("gemv")
    card = DeviceInfo(kind="cuda", name="some card", arch=target, wave_width=TARGETS[target][2])
    for m in (1, 2, 4, 8):
        settings = TritonGemv.tuning(LinearProblem(m=m, n=34816, k=5120, dtype="BF16", bias=False), card)
        offered = [kernels.Config(**setting) for setting in settings]
        tiles = {(config.block_n, config.block_k, config.num_warps): config for config in offered}
        most = max(n * k // warps for n, k, warps in tiles)
        for (n, k, warps), config in tiles.items():
            if n * k // warps == most:
                check(gemv(kernels, m, kernels.CONFIGS.index(config)), target)
