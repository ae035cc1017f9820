"""kernels/gemv/gpu.cu against float64: ragged and unaligned rows, all parameters, what it refuses."""

import itertools
import shutil

import numpy as np
import pytest
from gpu_devices import HostDevice
from native_calls import Guarded, assert_close, exact, stored

from harness.resources import kernels_dir

KINDS = [("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f32")]
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23}


def integers(shape):
    """Exact in every type, and so are their sums: a missed column can't hide in a tolerance."""
    return np.random.default_rng(shape[-1]).integers(-2, 3, shape)


def normals(shape):
    return np.random.default_rng(shape[-1]).standard_normal(shape)


def shifted(values, dtype, offset):
    """Stored `offset` elements behind a multiple of 16 bytes."""
    flat = stored(values, dtype).ravel()
    room = np.zeros(flat.size + offset + 16, dtype=flat.dtype)
    first = offset + -room.ctypes.data % 16 // room.itemsize
    room[first : first + flat.size] = flat
    return room[first : first + flat.size].reshape(values.shape)


def run(
    gpu, kind, m, n, k, *, values=integers, bias=True, rows=1, waves=4, split=1, double=0, gap=0, offset=0, calls=None
):
    """One call: (result [m, n + gap], expected [m, n], |x| |weight|^T)."""
    dtype, out_dtype = kind
    x, b = stored(values((m, k + gap)), dtype), stored(values((n,)), dtype)
    weight = shifted(values((n, k)), dtype, offset)
    out, partials = Guarded((m, n + gap), out_dtype), Guarded((split * m * n,), "f32")
    sizes = (m, n, k, k + gap, n + gap, gpu.wave, rows, waves, split, double, calls)
    name = f"gemv_{dtype}_{out_dtype}"
    assert gpu("gemv", name, x, weight, b if bias else None, out, partials, *sizes) == 0
    partials.result()
    x, weight = exact(x)[:, :k], exact(weight)
    return out.result(), x @ weight.T + (exact(b) if bias else 0), np.abs(x) @ np.abs(weight).T


def check_exact(gpu, kind, m, n, k, **options):
    out, expected, _ = run(gpu, kind, m, n, k, **options)
    np.testing.assert_array_equal(out[:, :n], exact(stored(expected, kind[1])), f"{m, n, k} {options}")
    assert np.isnan(out[:, n:]).all()


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("k", [1, 7, 8, 31, 64, 200, 520])
def test_every_column_counts_once(gpu, kind, k):
    for n in (1, 5, 17):
        check_exact(gpu, kind, 1, n, k)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("m", range(1, 9))
def test_rows_of_x(gpu, dtype, m):
    check_exact(gpu, (dtype, "f32"), m, 9, 264, rows=2, bias=False)
    check_exact(gpu, (dtype, "f32"), m, 9, 267, gap=3)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_variant(gpu, dtype):
    """Aligned rows of more than two turns with a rest, rows of the weight that fill no wave."""
    for rows, split, double in itertools.product((1, 2, 4), (1, 3), (0, 1)):
        k = 2504 if dtype != "f32" else 1252
        check_exact(gpu, (dtype, "f32"), 2, 7, k, rows=rows, split=split, double=double, waves=2)
        check_exact(gpu, (dtype, "f32"), 2, 7, 131, rows=rows, split=split, double=double, waves=1)


@pytest.mark.parametrize(
    "dtype, k, columns",
    [("bf16", 896, [192, 256, 192, 256]), ("f32", 96, [32, 32, 32]), ("f16", 136, [64, 64, 8]),
     ("bf16", 136, [32, 32, 32, 40]), ("f16", 16, [0, 8, 8]), ("bf16", 64 * 64, [64] * 64)],
)  # fmt: skip
def test_parts_of_a_row_begin_with_lines_where_there_are_enough(gpu, dtype, k, columns):
    """A part of a product of ones is the number of its columns."""
    x, weight = shifted(np.ones((1, k)), dtype, 0), shifted(np.ones((3, k)), dtype, 0)
    out, partials = Guarded((1, 3), "f32"), Guarded((len(columns), 3), "f32")
    sizes = (1, 3, k, k, 3, gpu.wave, 1, 2, len(columns), 0, None)
    assert gpu("gemv", f"gemv_{dtype}_f32", x, weight, None, out, partials, *sizes) == 0
    np.testing.assert_array_equal(partials.result(), np.repeat(columns, 3).reshape(-1, 3))
    assert (out.result() == k).all()


@pytest.mark.parametrize("splits", [2, 3, 16, 33, 64])
def test_every_column_counts_once_in_any_number_of_parts(gpu, splits):
    for k in (8, 120, 136, 1048):
        check_exact(gpu, ("bf16", "f32"), 1, 3, k, split=splits, waves=1)


@pytest.mark.parametrize("dtype, offset", [("bf16", 1), ("bf16", 7), ("f16", 4), ("f32", 3)])
def test_rows_off_sixteen_bytes(gpu, dtype, offset):
    for k in (3, 64, 77):
        check_exact(gpu, (dtype, "f32"), 3, 5, k, offset=offset, split=2, rows=4)


@pytest.mark.parametrize("k", [64, 131], ids=["aligned", "ragged"])
@pytest.mark.parametrize("split", [1, 3])
def test_each_launch_counts_once(gpu, k, split):
    calls = Guarded((1,), "i64")
    calls.values[:] = 40
    for _ in range(2):
        run(gpu, ("bf16", "bf16"), 2, 37, k, split=split, calls=calls)
    assert calls.result() == [42]


def test_strided_rows(gpu):
    check_exact(gpu, ("bf16", "f32"), 4, 37, 96, gap=8, rows=4)
    check_exact(gpu, ("bf16", "bf16"), 4, 37, 96, gap=8, split=4)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_rounding(gpu, kind):
    """Accumulated in fp32: the error of a sum of k products in any order grows like sqrt(k)."""
    out, expected, magnitudes = run(gpu, kind, 3, 20, 1024, values=normals, rows=2, double=1)
    assert_close(out, expected, np.abs(expected) * ROUNDING[kind[1]] + 4 * 32 * 2.0**-24 * magnitudes)


def test_nan_and_infinity_pass_through(gpu):
    x, weight, out = stored(np.ones((1, 64)), "bf16"), np.ones((3, 64)), Guarded((1, 3), "bf16")
    weight[0, 5], weight[1, 60] = np.nan, np.inf
    sizes = (1, 3, 64, 64, 3, gpu.wave, 2, 4, 1, 1)
    assert gpu("gemv", "gemv_bf16_bf16", x, stored(weight, "bf16"), None, out, None, *sizes) == 0
    np.testing.assert_array_equal(out.result(), [[np.nan, np.inf, 64.0]])


@pytest.mark.parametrize(
    "m, rows, waves, split, double, code",
    [(9, 1, 4, 1, 0, -2), (0, 1, 4, 1, 0, -2), (1, 3, 4, 1, 0, -4), (8, 4, 4, 1, 0, -4), (1, 1, 64, 1, 0, -4),
     (1, 1, 4, 0, 0, -4), (1, 1, 4, 65, 0, -4), (1, 1, 4, 1, 2, -4)],
)  # fmt: skip
def test_what_it_refuses(gpu, m, rows, waves, split, double, code):
    x, out = stored(np.ones((8, 64)), "f32"), Guarded((8, 3), "f32")
    sizes = (m, 3, 64, 64, 3, gpu.wave, rows, waves, split, double)
    assert gpu("gemv", "gemv_f32_f32", x, stored(np.ones((3, 64)), "f32"), None, out, None, *sizes) == code
    assert np.isnan(out.result()).all()


def test_a_wave_that_is_not_there_is_refused(gpu):
    x, out = stored(np.ones((1, 64)), "f32"), Guarded((1, 1), "f32")
    assert gpu("gemv", "gemv_f32_f32", x, x, None, out, None, 1, 1, 64, 64, 1, 16, 1, 4, 1, 0) == -1


@pytest.mark.compiler
def test_a_team_sum_over_32_lanes_shows_at_64(tmp_path):
    """In the very function that kernels call: what CUDA would never miss, and gfx9 would."""
    kernels = shutil.copytree(kernels_dir(), tmp_path / "kernels")
    header, sum_of_all = kernels / "portable.h", "int distance = kTeam / 2;"
    assert header.read_text().count(sum_of_all) == 1
    header.write_text(header.read_text().replace(sum_of_all, "int distance = (kTeam < 32 ? kTeam : 32) / 2;"))
    for wave in (32, 64):
        out, expected, _ = run(HostDevice(wave, reverse=False, kernels=kernels), ("f32", "f32"), 1, 3, 520)
        assert (out == expected).all() == (wave == 32)
