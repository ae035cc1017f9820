"""kernels/gemv against float64: ragged shapes, all numbers of rows and streams, all splits."""

import numpy as np
import pytest
from builds import BUILDS, TILE_BUILDS, kernels_of
from native_calls import Guarded, assert_close, exact, stored

from harness.backends.launch import whole_lines

pytestmark = pytest.mark.compiler

KINDS = [("bf16", "bf16"), ("bf16", "f32"), ("f32", "f32")]
ROUNDING = {"bf16": 2.0**-8, "f32": 2.0**-23}


@pytest.fixture(params=[*BUILDS, *TILE_BUILDS])
def kernels(request):
    return kernels_of(request.param)


def run(kernels, pool, kind, m, n, k, *, values, bias=True, streams=8, prefetch_bytes=1024, x_gap=0, out_gap=0):
    """One call on the given values: (result [m, n + out_gap], x, weight, bias) in float64."""
    dtype, out_dtype = kind
    x, weight, b = (stored(values(shape), dtype) for shape in ((m, k + x_gap), (n, k), (n,)))
    out = Guarded((m, n + out_gap), out_dtype)
    strides = (k + x_gap, n + out_gap)
    scratch = Guarded((m, whole_lines(k)), "f32")
    sizes = (m, n, k, *strides, streams, prefetch_bytes)
    kernels("gemv")(f"gemv_{dtype}_{out_dtype}", x, weight, b if bias else None, out, scratch, *sizes, pool[0])
    scratch.result()
    return out.result(), exact(x)[:, :k], exact(weight), exact(b) if bias else None


def integers(shape):
    """Exact in bf16 and fp32, and so are their sums: a missed column can't hide in a tolerance."""
    return np.random.default_rng(shape[-1]).integers(-4, 5, shape)


def normals(shape):
    return np.random.default_rng(shape[-1]).standard_normal(shape)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("k", [1, 31, 32, 33, 200])
@pytest.mark.parametrize("m", [1, 5])
def test_every_column_counts_once(kernels, pool, kernel_reference, kind, m, k):
    """n of 900: several pieces for each thread."""
    for n in (1, 5, 16, 119, 900):
        out, x, weight, bias = run(kernels, pool, kind, m, n, k, values=integers)
        expected = kernel_reference("gemv").gemv(x, weight, bias)
        np.testing.assert_array_equal(out, exact(stored(expected, kind[1])), f"n = {n}")


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("m", range(1, 9))
def test_rows_and_streams(kernels, pool, kernel_reference, kind, m):
    for streams in (1, 2, 4, 8):
        out, x, weight, _ = run(kernels, pool, kind, m, 75, 70, values=integers, bias=False, streams=streams)
        expected = kernel_reference("gemv").gemv(x, weight)
        np.testing.assert_array_equal(out, exact(stored(expected, kind[1])), f"{streams} streams")


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("m, n, k", [(1, 300, 3072), (3, 40, 1025)])
def test_rounding(kernels, pool, kernel_reference, kind, m, n, k):
    """Accumulated in fp32: the error of a sum of k products in any order grows like sqrt(k)."""
    out, x, weight, bias = run(kernels, pool, kind, m, n, k, values=normals)
    expected = kernel_reference("gemv").gemv(x, weight, bias)
    accumulated = 4 * np.sqrt(k) * 2.0**-24 * (np.abs(x) @ np.abs(weight).T)
    assert_close(out, expected, np.abs(expected) * ROUNDING[kind[1]] + accumulated)


@pytest.mark.parametrize("prefetch_bytes", [0, 64, 1 << 20])
def test_prefetching_changes_nothing(kernels, pool, kernel_reference, prefetch_bytes):
    for m in (1, 3):
        out, x, weight, bias = run(
            kernels, pool, ("bf16", "f32"), m, 37, 96, values=integers, prefetch_bytes=prefetch_bytes
        )
        np.testing.assert_array_equal(out, kernel_reference("gemv").gemv(x, weight, bias))


def test_strided_rows(kernels, pool, kernel_reference):
    """Rows that are views into wider buffers: what lies between them is neither read as x nor written."""
    out, x, weight, bias = run(kernels, pool, ("bf16", "f32"), 4, 37, 96, values=integers, x_gap=3, out_gap=5)
    np.testing.assert_array_equal(out[:, :37], kernel_reference("gemv").gemv(x, weight, bias))
    assert np.isnan(out[:, 37:]).all()


@pytest.mark.parametrize("m", [1, 2])
def test_nan_and_infinity_pass_through(kernels, pool, m):
    x, weight, out = stored(np.ones((m, 64)), "bf16"), np.ones((3, 64)), Guarded((m, 3), "bf16")
    weight[0, 5], weight[1, 60] = np.nan, np.inf
    sizes = (m, 3, 64, 64, 3, 8, 1024)
    scratch = np.empty((m, 64), dtype=np.float32)
    kernels("gemv")("gemv_bf16_bf16", x, stored(weight, "bf16"), None, out, scratch, *sizes, pool[0])
    np.testing.assert_array_equal(out.result(), [[np.nan, np.inf, 64.0]] * m)
