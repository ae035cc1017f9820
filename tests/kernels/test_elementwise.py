"""kernels/elementwise against float64: one row and several, ragged widths, both storage types."""

import numpy as np
import pytest
from native_calls import Guarded, assert_close, exact, stored, to_bf16

pytestmark = pytest.mark.compiler

ULP = {"bf16": 2.0**-8, "f32": 2.0**-22}
EPS = 1e-5

dtypes = pytest.mark.parametrize("dtype", ["bf16", "f32"])
rows = pytest.mark.parametrize("m", [1, 5])
widths = pytest.mark.parametrize("width", [7, 64, 83])


def normals(shape, dtype, seed=0):
    return stored(np.random.default_rng((seed, *shape)).standard_normal(shape), dtype)


@dtypes
@rows
@widths
def test_embed(kernels, pool, dtype, m, width):
    table, ids = normals((11, width), dtype), np.array([10, 0, 3, 3, 7][:m])
    out = Guarded((m, width), dtype)
    kernels("elementwise")(f"embed_{dtype}", ids, table, out, m, width, pool[0])
    np.testing.assert_array_equal(out.result(), exact(table)[ids])


@dtypes
@rows
@widths
@pytest.mark.parametrize("centered", [0, 1])
def test_rmsnorm(kernels, pool, kernel_reference, dtype, m, width, centered):
    x, weight, out = normals((m, width), dtype), normals((width,), dtype), Guarded((m, width), dtype)
    kernels("elementwise")(f"rmsnorm_{dtype}", x, weight, EPS, centered, out, m, width, pool[0])
    expected = kernel_reference("elementwise").rmsnorm(exact(x), exact(weight) + centered, EPS)
    assert_close(out.result(), expected, np.abs(expected) * 2 * ULP[dtype])


@dtypes
@rows
@widths
def test_add_rmsnorm(kernels, pool, kernel_reference, dtype, m, width):
    """The sum is stored rounded, and it is the rounded sum that is normalized."""
    delta, weight = normals((m, width), dtype, seed=1), normals((width,), dtype)
    residual, out = Guarded((m, width), dtype), Guarded((m, width), dtype)
    before = normals((m, width), dtype, seed=2)
    residual.values[...] = before
    kernels("elementwise")(f"add_rmsnorm_{dtype}", residual, delta, weight, EPS, 0, out, m, width, pool[0])
    total = residual.result()
    np.testing.assert_array_equal(total, exact(stored(exact(before) + exact(delta), dtype)))
    expected = kernel_reference("elementwise").rmsnorm(total, exact(weight), EPS)
    assert_close(out.result(), expected, np.abs(expected) * 2 * ULP[dtype])


def test_norm_rounds_before_the_weight(kernels, pool):
    """transformers rounds x / rms to bf16 and multiplies then."""
    x = to_bf16(np.full((1, 32), 1.0))
    weight, out = to_bf16(np.full(32, 3.0)), Guarded((1, 32), "bf16")
    eps = 1 / 1.0029296875**2 - 1  # x / rms = 1.0029: 1 in bf16; unrounded, times 3, it would become 3.0156
    kernels("elementwise")("rmsnorm_bf16", x, weight, eps, 0, out, 1, 32, pool[0])
    np.testing.assert_array_equal(out.result(), 3.0)


def test_a_centered_norm_rounds_once(kernels, pool):
    """transformers multiplies by 1 + weight in fp32: 1.0029 times 3 is 3.0156 in bf16."""
    x = to_bf16(np.full((1, 32), 1.0))
    weight, out = to_bf16(np.full(32, 2.0)), Guarded((1, 32), "bf16")
    eps = 1 / 1.0029296875**2 - 1
    kernels("elementwise")("rmsnorm_bf16", x, weight, eps, 1, out, 1, 32, pool[0])
    np.testing.assert_array_equal(out.result(), 3.015625)


@dtypes
@rows
@pytest.mark.parametrize(
    "heads, kv_heads, head_dim, rotary, with_norm, centered",
    [(4, 2, 64, 64, True, 0), (3, 1, 48, 48, False, 0), (2, 2, 80, 80, True, 0), (3, 1, 64, 16, True, 1)],
)
def test_qk_norm_rope_cache(
    kernels, pool, kernel_reference, dtype, m, heads, kv_heads, head_dim, rotary, with_norm, centered
):
    """Rows of a fused buffer with a gap behind; places in the middle of the cache, all others stay NaN."""
    reference, max_context, context = kernel_reference("elementwise"), 23, 17
    width = (heads + 2 * kv_heads) * head_dim + 5
    qkv = normals((m, width), dtype)
    q, k, v = (qkv[:, first * head_dim :] for first in (0, heads, heads + kv_heads))
    weights = [normals((head_dim,), dtype, seed) if with_norm else None for seed in (1, 2)]
    angles = np.random.default_rng(3).uniform(0, 7, (max_context, rotary // 2))
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    q_out = Guarded((m, heads, head_dim), dtype)
    caches = [Guarded((kv_heads, max_context, head_dim), dtype) for _ in range(2)]
    sizes = (m, heads, kv_heads, head_dim, rotary, max_context, width, head_dim, width, width)
    kernels("elementwise")(
        f"qk_norm_rope_cache_{dtype}", q, k, v, *weights, EPS, centered, cosine, sine, np.array([context]), q_out,
        *caches, *sizes, pool[0],
    )  # fmt: skip

    places = slice(context - m, context)

    def rotated(part, num_heads, weight):
        x = exact(part[:, : num_heads * head_dim]).reshape(m, num_heads, head_dim)
        x = x if weight is None else reference.rmsnorm(x, exact(weight) + centered, EPS)
        return reference.rotate(x, exact(cosine)[places], exact(sine)[places])

    def check(actual, expected):
        # Both elements of a pair are rounded up to three times, and either may come out as the small one.
        size = np.abs(expected).max()
        assert_close(actual, expected, 3 * ULP[dtype] * size)

    check(q_out.result(), rotated(q, heads, weights[0]))
    keys, values = (cache.result() for cache in caches)
    check(keys[:, places], rotated(k, kv_heads, weights[1]).transpose(1, 0, 2))
    expected_values = exact(v[:, : kv_heads * head_dim]).reshape(m, kv_heads, head_dim).transpose(1, 0, 2)
    np.testing.assert_array_equal(values[:, places], expected_values)
    for cache in (keys, values):
        assert np.isnan(np.delete(cache, np.r_[places], axis=1)).all()


@dtypes
@rows
@widths
def test_silu_mul(kernels, pool, kernel_reference, dtype, m, width):
    """Gate and up are halves of a fused buffer's rows."""
    gate_up, out = normals((m, 2 * width), dtype), Guarded((m, width), dtype)
    gate, up = gate_up[:, :width], gate_up[:, width:]
    sizes = (m, width, 2 * width, 2 * width)
    kernels("elementwise")(f"silu_mul_{dtype}", gate, up, out, *sizes, pool[0])
    expected = kernel_reference("elementwise").silu_mul(exact(gate), exact(up))
    assert_close(out.result(), expected, np.abs(expected) * 2 * ULP[dtype])


def test_silu_over_its_whole_range(kernels, pool, kernel_reference):
    """Accurate to a few last bits until exp leaves fp32, and no infinity or NaN behind that."""
    gate = np.concatenate((np.linspace(-87, 87, 2001), [-1e4, 1e4, 0.0, -np.inf, np.inf])).astype(np.float32)
    up, out = np.ones_like(gate), Guarded(gate.shape, "f32")
    kernels("elementwise")("silu_mul_f32", gate, up, out, 1, gate.size, gate.size, gate.size, pool[0])
    expected = kernel_reference("elementwise").silu_mul(exact(gate[:2001]), 1.0)
    assert_close(out.result()[:2001], expected, np.abs(expected) * 2.0**-21)
    np.testing.assert_allclose(out.result()[2001:2004], [0.0, 1e4, 0.0], atol=1e-30)


@dtypes
@rows
def test_sigmoid_mul(kernels, pool, kernel_reference, dtype, m):
    """Gates of heads that stand apart, in rows that do."""
    heads, width = 3, 37
    x, gate = Guarded((m, heads, width), dtype), normals((m, heads * 2 * width + 3), dtype)
    x.values[...] = normals((m, heads, width), dtype, seed=1)
    before = exact(x.values)
    sizes = (m, heads, width, gate.shape[1], 2 * width)
    kernels("elementwise")(f"sigmoid_mul_{dtype}", x, gate[:, width:], *sizes, pool[0])
    gates = exact(gate)[:, :-3].reshape(m, heads, 2, width)[:, :, 1]
    expected = kernel_reference("elementwise").sigmoid_mul(before, gates)
    assert_close(x.result(), expected, np.abs(expected) * 2 * ULP[dtype])


@dtypes
@pytest.mark.parametrize("size", [1, 5, 1024, 3000])
def test_argmax(kernels, pool, dtype, size):
    for largest in {0, size // 2, size - 1}:
        logits = stored(np.random.default_rng(size).uniform(-9, -1, size), dtype)
        logits[largest] = stored(np.array([-0.5]), dtype)[0]
        token = Guarded((1,), "i64")
        kernels("elementwise")(f"argmax_{dtype}", logits, token, size, pool[0])
        assert token.result() == largest


@dtypes
@pytest.mark.parametrize(
    "places, value, expected",
    [
        ((700, 1500, 2999), 5.0, 700),
        ((1500, 2999), np.inf, 1500),
        ((2100, 2200), np.nan, 2100),
        (range(3000), -np.inf, 0),
        (range(3000), 1.0, 0),
    ],
)
def test_argmax_of_equals_and_of_nan(kernels, pool, dtype, places, value, expected):
    """The first of equals; NaN, if there is one, as torch has it."""
    logits = np.random.default_rng(0).standard_normal(3000)
    logits[list(places)] = value
    token = Guarded((1,), "i64")
    kernels("elementwise")(f"argmax_{dtype}", stored(logits, dtype), token, 3000, pool[0])
    assert token.result() == expected


def test_advance_adds_to_the_context(kernels, pool):
    context = np.array([41], np.int64)
    kernels("elementwise")("advance_context", context, 512, pool[0])
    assert context.tolist() == [553]


@dtypes
@rows
def test_write_places(kernels, pool, dtype, m):
    """Rows with a stride, blocks out of order, one token that has no place; nothing else is touched."""
    kv_heads, head_dim, block_size, blocks = 3, 20, 4, 5
    rows_of_both = normals((m, 2 * kv_heads * head_dim + 7), dtype)
    k, v = rows_of_both[:, : kv_heads * head_dim], rows_of_both[:, kv_heads * head_dim : 2 * kv_heads * head_dim]
    slots = np.array([13, -1, 3, 4, 19][:m])
    cache = Guarded((blocks, kv_heads, 2, block_size, head_dim), dtype)
    strides = (kv_heads * 2 * block_size * head_dim, 2 * block_size * head_dim, rows_of_both.shape[1])
    kernels("elementwise")(
        f"write_places_{dtype}", k, v, slots, cache, cache.values[:, :, 1], m, kv_heads, head_dim, block_size, *strides,
        rows_of_both.shape[1], pool[0],
    )  # fmt: skip
    found = cache.result()
    for row, slot in enumerate(slots):
        if slot >= 0:
            written = found[slot // block_size, :, :, slot % block_size]
            np.testing.assert_array_equal(written[:, 0], exact(k[row]).reshape(kv_heads, head_dim))
            np.testing.assert_array_equal(written[:, 1], exact(v[row]).reshape(kv_heads, head_dim))
    assert np.isfinite(found).sum() == 2 * kv_heads * head_dim * (slots >= 0).sum()
