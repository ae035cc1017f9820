"""kernels/decode_attention against float64, with NaN in all places that are not filled."""

import numpy as np
import pytest
from native_calls import Guarded, assert_close, exact, stored

from harness.backends.launch import whole_lines

pytestmark = pytest.mark.compiler

ROUNDING = {"bf16": 2.0**-8, "f32": 2.0**-20}


def run(kernels, pool, dtype, context, group, head_dim, *, kv_heads=3, max_context=None, scale=1.0, streams=4):
    """One call on random data: (result, q, keys, values) in float64."""
    rng = np.random.default_rng((context, group, head_dim))
    max_context = max_context or context + 9
    q = stored(scale * rng.standard_normal((kv_heads * group, head_dim)), dtype)
    caches = rng.standard_normal((2, kv_heads, max_context, head_dim))
    caches[:, :, context:] = np.nan
    k_cache, v_cache = (stored(cache, dtype) for cache in caches)
    if dtype == "bf16":
        assert np.isnan(exact(k_cache)[:, context:]).all()
    out = Guarded((kv_heads * group, head_dim), dtype)
    scratch = Guarded(((kv_heads + pool[1] - 1) * group * (whole_lines(head_dim) + 2),), "f32")
    sizes = (kv_heads, group, head_dim, max_context, streams, 256)
    filled = np.array([context])
    kernels("decode_attention")(f"decode_attention_{dtype}", q, k_cache, v_cache, filled, out, scratch, *sizes, pool[0])
    scratch.result()
    return out.result(), exact(q), exact(k_cache), exact(v_cache)


def check(kernels, pool, kernel_reference, dtype, context, *shape, **options):
    out, q, k_cache, v_cache = run(kernels, pool, dtype, context, *shape, **options)
    expected = kernel_reference("decode_attention").decode_attention(q, k_cache, v_cache, context)
    # Scores are off by some 2^-24 of their terms, and so, relatively, are weights; values are of size 1.
    assert_close(out, expected, np.abs(expected) * ROUNDING[dtype] + 4e-6)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("context", [1, 2, 31, 32, 33, 127, 128, 129])
def test_contexts(kernels, pool, kernel_reference, dtype, context):
    check(kernels, pool, kernel_reference, dtype, context, 2, 64)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16])
def test_groups(kernels, pool, kernel_reference, dtype, group):
    check(kernels, pool, kernel_reference, dtype, 50, group, 64)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("head_dim", [16, 32, 48, 80, 96, 128, 256])
def test_head_dims(kernels, pool, kernel_reference, dtype, head_dim):
    check(kernels, pool, kernel_reference, dtype, 70, 5, head_dim)


@pytest.mark.parametrize("streams", [1, 2, 4, 8])
@pytest.mark.parametrize("context", [1, 7, 8, 9, 127, 128, 129, 1023, 1031])
def test_streams(kernels, pool, kernel_reference, streams, context):
    """Less than one place a stream, whole turns, blocks that end within one, and what the streams leave."""
    check(kernels, pool, kernel_reference, "bf16", context, 3, 48, streams=streams)


@pytest.mark.parametrize("kv_heads, context", [(1, 1), (1, 3), (2, 1), (5, 1), (1, 500), (9, 30)])
def test_more_and_fewer_heads_than_threads(kernels, pool, kernel_reference, kv_heads, context):
    check(kernels, pool, kernel_reference, "bf16", context, 2, 32, kv_heads=kv_heads)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize("context", [1, 16, 33, 128, 300])
def test_blocks_give_what_a_whole_cache_gives(kernels, pool, dtype, block_size, context):
    """Bit for bit: places in blocks out of order, keys and values of a head side by side, NaN in all others."""
    kv_heads, group, head_dim = 3, 2, 64
    expected, q, keys, values = run(kernels, pool, dtype, context, group, head_dim, kv_heads=kv_heads)
    needed = -(-context // block_size)
    table = np.random.default_rng(context).permutation(needed + 2)[:needed].astype(np.int32)
    cache = stored(np.full((needed + 2, kv_heads, 2, block_size, head_dim), np.nan), dtype)
    for number, block in enumerate(table):
        places = slice(number * block_size, min(context, (number + 1) * block_size))
        count = places.stop - places.start
        cache[block, :, 0, :count] = stored(keys[:, places], dtype)
        cache[block, :, 1, :count] = stored(values[:, places], dtype)
    out = Guarded((kv_heads * group, head_dim), dtype)
    scratch = Guarded(((kv_heads + pool[1] - 1) * group * (whole_lines(head_dim) + 2),), "f32")
    head_stride = 2 * block_size * head_dim
    sizes = (kv_heads, group, head_dim, block_size, kv_heads * head_stride, head_stride, 4, 256)
    kernels("decode_attention")(
        f"decode_attention_paged_{dtype}", stored(q, dtype), cache, cache[:, :, 1], table, np.array([context]), out,
        scratch, *sizes, pool[0],
    )  # fmt: skip
    np.testing.assert_array_equal(out.result(), expected)
    scratch.result()


def test_a_full_cache(kernels, pool, kernel_reference):
    check(kernels, pool, kernel_reference, "bf16", 96, 2, 64, max_context=96)


def test_large_scores(kernels, pool, kernel_reference):
    """Weights of almost one and almost zero, the largest anywhere: the running maximum at work."""
    out, q, k_cache, v_cache = run(kernels, pool, "f32", 300, 2, 64, scale=40.0)
    expected = kernel_reference("decode_attention").decode_attention(q, k_cache, v_cache, 300)
    assert_close(out, expected, 1e-3)  # scores of some hundred: their last bits are 1e-5


def test_nan_in_a_filled_place_shows(kernels, pool):
    q, cache = stored(np.ones((2, 32)), "f32"), np.ones((2, 40, 32), dtype=np.float32)
    cache[1, 20, 3] = np.nan
    out, scratch = Guarded((2, 32), "f32"), np.empty(8 * 34 * 2, dtype=np.float32)
    filled = np.array([40])
    kernels("decode_attention")(
        "decode_attention_f32", q, cache, cache, filled, out, scratch, 2, 1, 32, 40, 4, 0, pool[0]
    )
    np.testing.assert_allclose(out.result()[0], 1.0, rtol=1e-6)
    assert np.isnan(out.result()[1]).all()
