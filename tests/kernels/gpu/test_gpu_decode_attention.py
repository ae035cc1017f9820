"""kernels/decode_attention/gpu.cu against float64: contiguous and paged caches, NaN in places that are not filled."""

import itertools

import numpy as np
import pytest
from native_calls import Guarded, assert_close, exact, stored

ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20}
CONTEXTS, GROUPS, HEAD_DIMS, DTYPES = (1, 127, 128, 129), range(1, 9), (64, 96, 128, 256), ("bf16", "f16", "f32")
PAIRS = [
    (CONTEXTS[c], GROUPS[g], HEAD_DIMS[(c + g) % 4], DTYPES[(c + g // 3) % 3], (None, 16)[(g // 4 + c // 2) % 2])
    for g in range(8)
    for c in range(4)
]
"""Each value of one with each value of another, in as few cases as contexts and groups take."""


def data(dtype, contexts, kv_heads, group, head_dim, scale=1.0):
    """q [requests, heads, head_dim] and caches [requests, kv_heads, max_context, head_dim], NaN behind the context."""
    rng = np.random.default_rng((*contexts, group, head_dim))
    q = stored(scale * rng.standard_normal((len(contexts), kv_heads * group, head_dim)), dtype)
    caches = rng.standard_normal((2, len(contexts), kv_heads, max(contexts) + 9, head_dim))
    for request, context in enumerate(contexts):
        caches[:, request, :, context:] = np.nan
    return q, *(stored(cache, dtype) for cache in caches)


def contiguous(gpu, dtype, q, k_cache, v_cache, contexts, splits):
    requests, kv_heads, max_context, head_dim = k_cache.shape
    out, partials = Guarded(q.shape, dtype), Guarded((q.shape[0] * q.shape[1] * splits * (head_dim + 2),), "f32")
    sizes = (requests, kv_heads, q.shape[1] // kv_heads, head_dim, max_context, k_cache[0].size, splits, gpu.wave)
    name = f"decode_attention_{dtype}"
    assert gpu("decode_attention", name, q, k_cache, v_cache, np.array(contexts), out, partials, *sizes) == 0
    partials.result()
    return out.result()


def paged(gpu, dtype, q, k_cache, v_cache, contexts, splits, block_size, calls=None, heads_first=False):
    """The same caches cut into blocks that lie in any order, with a gap between blocks; keys and values of a place side
    by side. heads_first: a head's places of a block lie together."""
    requests, kv_heads, max_context, head_dim = k_cache.shape
    per_request = -(-max_context // block_size)
    table = np.random.default_rng(5).permutation(requests * per_request + 3).astype(np.int32)
    table = table[: requests * per_request].reshape(requests, per_request)
    both = stored(np.full((requests * per_request + 3, block_size + 1, kv_heads, 2 * head_dim), np.nan), dtype)
    if heads_first:
        both = np.ascontiguousarray(both.swapaxes(1, 2)).swapaxes(1, 2)
    pages = both[..., :head_dim], both[..., head_dim:]
    for page, cache in zip(pages, (k_cache, v_cache), strict=True):
        for request in range(requests):
            for place in range(max_context):
                page[table[request, place // block_size], place % block_size] = cache[request, :, place]
    out, partials = Guarded(q.shape, dtype), Guarded((q.shape[0] * q.shape[1] * splits * (head_dim + 2),), "f32")
    strides = (stride // both.itemsize for stride in both.strides[:3])
    sizes = (requests, kv_heads, q.shape[1] // kv_heads, head_dim, block_size, *strides, per_request, splits, gpu.wave)
    arguments = (q, *pages, table, np.array(contexts, np.int32), out, partials, *sizes, calls)
    assert gpu("decode_attention", f"decode_attention_paged_{dtype}", *arguments) == 0
    partials.result()
    return out.result()


def check(gpu, kernel_reference, dtype, contexts, group, head_dim, *, kv_heads=2, splits=2, block_size=None):
    q, k_cache, v_cache = data(dtype, contexts, kv_heads, group, head_dim)
    arguments = (gpu, dtype, q, k_cache, v_cache, contexts, splits)
    out = contiguous(*arguments) if block_size is None else paged(*arguments, block_size)
    for request, context in enumerate(contexts):
        inputs = (exact(part[request]) for part in (q, k_cache, v_cache))
        expected = kernel_reference("decode_attention").decode_attention(*inputs, context)
        # Scores are off by some 2^-24 of their terms, and so, relatively, are weights; values are of size 1.
        assert_close(out[request], expected, np.abs(expected) * ROUNDING[dtype] + 4e-6)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("context", [1, 127, 128, 129])
def test_contexts(gpu, kernel_reference, dtype, context):
    check(gpu, kernel_reference, dtype, [context], 2, 64, splits=3)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 11])
def test_groups(gpu, kernel_reference, group):
    check(gpu, kernel_reference, "bf16", [50], group, 64)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
def test_head_dims(gpu, kernel_reference, dtype, head_dim):
    check(gpu, kernel_reference, dtype, [40], 3, head_dim)


@pytest.mark.parametrize("context, group, head_dim, dtype, block_size", PAIRS)
def test_sizes_by_pairs(gpu, kernel_reference, context, group, head_dim, dtype, block_size):
    check(gpu, kernel_reference, dtype, [context], group, head_dim, kv_heads=1, block_size=block_size)


def test_each_pair_of_sizes_is_there():
    sizes = (CONTEXTS, GROUPS, HEAD_DIMS, DTYPES, (None, 16))
    for first, second in itertools.combinations(range(5), 2):
        assert {(case[first], case[second]) for case in PAIRS} == set(itertools.product(sizes[first], sizes[second]))


@pytest.mark.parametrize("splits", [1, 2, 7, 64])
def test_splits_with_and_without_places(gpu, kernel_reference, splits):
    check(gpu, kernel_reference, "f32", [5, 90, 1], 2, 64, splits=splits)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("block_size", [1, 16, 7])
def test_paged(gpu, kernel_reference, dtype, block_size):
    check(gpu, kernel_reference, dtype, [33, 70], 4, 128, block_size=block_size, splits=3)


@pytest.mark.parametrize("heads_first", [False, True])
def test_paged_is_contiguous(gpu, heads_first):
    arguments = (gpu, "bf16", *data("bf16", [45, 3], 2, 5, 96), [45, 3], 4)
    np.testing.assert_array_equal(contiguous(*arguments), paged(*arguments, 16, heads_first=heads_first))


def test_a_request_that_fills_up_the_batch_gets_zeros(gpu):
    """No place of its is read: all of them are NaN."""
    arguments = (gpu, "bf16", *data("bf16", [20, 0, 7], 2, 3, 64), [20, 0, 7], 3)
    for out in (contiguous(*arguments), paged(*arguments, 4)):
        assert (exact(out[1]) == 0).all() and np.isfinite(exact(out)).all() and (exact(out[[0, 2]]) != 0).any()


@pytest.mark.parametrize("splits", [1, 5])
def test_each_launch_counts_once(gpu, splits):
    calls = Guarded((1,), "i64")
    calls.values[:] = 6
    for _ in range(3):
        paged(gpu, "f32", *data("f32", [30, 9], 2, 2, 32), [30, 9], splits, 8, calls)
    assert calls.result() == [9]


def test_large_scores(gpu, kernel_reference):
    """Weights of almost one and almost zero, the largest anywhere: the running maximum at work."""
    q, k_cache, v_cache = data("f32", [300], 1, 2, 64, scale=40.0)
    out = contiguous(gpu, "f32", q, k_cache, v_cache, [300], 2)
    inputs = (exact(part[0]) for part in (q, k_cache, v_cache))
    assert_close(out[0], kernel_reference("decode_attention").decode_attention(*inputs, 300), 1e-3)


def test_nan_in_a_filled_place_shows(gpu):
    q, k_cache, v_cache = data("f32", [40], 2, 1, 32)
    k_cache[0, 1, 20, 3] = np.nan
    out = contiguous(gpu, "f32", q, k_cache, v_cache, [40], 2)
    assert np.isfinite(out[0, 0]).all() and np.isnan(out[0, 1]).all()


@pytest.mark.parametrize("head_dim, splits, code", [(60, 1, -2), (264, 1, -2), (64, 0, -4), (64, 257, -4)])
def test_what_it_refuses(gpu, head_dim, splits, code):
    q, out = stored(np.ones((1, 264)), "bf16"), Guarded((1, 264), "bf16")
    sizes = (1, 1, 1, head_dim, 1, head_dim, splits, gpu.wave)
    assert gpu("decode_attention", "decode_attention_bf16", q, q, q, np.array([1]), out, None, *sizes) == code
