"""What changes from launch to launch compiles nothing new: else a prompt of another length, or a layer whose counter
lies elsewhere, would compile inside a timed region."""

import pytest

from harness.absent_card import compiling_for
from harness.triton_kernels import load_triton
from tests.triton_kernels.compiled.cases import empty


@pytest.fixture(autouse=True)
def _nothing_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def at(tensor, place: int):
    """A view whose address is a multiple of 16 where place * its element's size is one."""
    return tensor[place : place + 1]


def gemv(counter: int):
    kernels, x, weight = load_triton("gemv"), empty(2, 256), empty(512, 256)
    return kernels.bind_gemv(x, weight, None, empty(2, 512), kernels.CONFIGS[0], at(empty(8, dtype="int64"), counter))


def decode(counter: int, request: int, blocks: int):
    """One request of a batch, as a server's step has it that also has prompts."""
    kernels, cache = load_triton("decode_attention"), empty(64, 16, 2, 128)
    contexts, table = empty(8, dtype="int32"), empty(8, blocks, dtype="int32")
    q = empty(1, 4, 64)
    return kernels.bind_paged(
        q, cache[..., :64], cache[..., 64:], at(table, request), at(contexts, request), q, kernels.CONFIGS[0],
        at(empty(8, dtype="int64"), counter),
    )  # fmt: skip


def prefill(m: int, request: int):
    kernels, q, cache = load_triton("prefill_attention"), empty(m, 4, 64), empty(2, 256, 64)
    return kernels.bind_prefill(q, cache, cache, at(empty(8, dtype="int64"), request), q, kernels.CONFIGS[0])


def delta(m: int):
    key_heads, heads, dim, taps = 2, 4, 64, 4
    kernels, channels = load_triton("gated_delta_rule"), (2 * key_heads + heads) * dim
    inputs = kernels.Inputs(*(empty(m, size) for size in (channels, heads * dim, heads, heads)))
    biases = (empty(heads, dtype="float32") for _ in range(2))
    weights = kernels.Weights(empty(channels, taps), *biases, empty(dim), 1e-6)
    state = kernels.State(empty(taps - 1, channels), empty(heads, dim, dim, dtype="float32"))
    bind = load_triton("gated_delta_rule", "triton_chunks.py").bind_prefill
    return bind(inputs, weights, state, empty(m, heads * dim), key_heads, kernels.CONFIGS[0])


@pytest.mark.parametrize(
    "bind, first, others",
    [
        (gemv, (0,), [(1,), (2,)]),
        (decode, (0, 0, 16), [(1, 0, 16), (0, 1, 16), (0, 4, 16), (0, 0, 17), (1, 3, 17), (0, 0, 1)]),
        (prefill, (32, 0), [(33, 0), (32, 1), (48, 2), (2, 0)]),
        (delta, (32,), [(33,), (64,), (2,)]),
    ],
    ids=["gemv", "decode", "prefill", "delta"],
)
@pytest.mark.parametrize("target", ["sm_90", "gfx90a"])
def test_a_launch_with_other_lengths_and_places_compiles_nothing(target, bind, first, others):
    with compiling_for(target) as found:
        bind(*first)()
        compiled = len(found)
        assert compiled > 0
        for other in others:
            bind(*other)()
            assert len(found) == compiled, other
