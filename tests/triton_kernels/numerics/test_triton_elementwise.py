"""Triton's fused elementwise kernels against float64, with NaN between strided rows."""

import numpy as np
import pytest
from tensors import DTYPES, ROUNDING, Guarded, assert_close, exact, normals, strided

OP = "elementwise"
EPS = 1e-5

dtypes = pytest.mark.parametrize("dtype", DTYPES)
widths = pytest.mark.parametrize("width", [1, 83, 128, 300])


@dtypes
@widths
@pytest.mark.parametrize("centered", [False, True])
def test_rmsnorm(kernels, reference, device, dtype, width, centered):
    x, weight = normals((3, width), dtype, device), normals((width,), dtype, device, 1)
    out = Guarded((3, width), dtype, device)
    kernels.bind_rmsnorm(x, weight, EPS, centered, out.tensor, kernels.CONFIGS[0])()
    expected = reference.rmsnorm(exact(x), exact(weight) + centered, EPS)
    assert_close(out.result(), expected, 2 * ROUNDING[dtype] * np.abs(expected))


@dtypes
@widths
def test_add_rmsnorm(kernels, reference, device, dtype, width):
    """The sum is stored rounded, and it is the rounded sum that is normalized."""
    before, delta = normals((3, width), dtype, device), normals((3, width), dtype, device, 1)
    weight = normals((width,), dtype, device, 2)
    residual, out = Guarded((3, width), dtype, device, before), Guarded((3, width), dtype, device)
    kernels.bind_add_rmsnorm(residual.tensor, delta, weight, EPS, False, out.tensor, kernels.CONFIGS[0])()
    total = residual.result()
    wanted = exact(before) + exact(delta)
    assert_close(total, wanted, ROUNDING[dtype] * np.abs(wanted))
    expected = reference.rmsnorm(total, exact(weight), EPS)
    assert_close(out.result(), expected, 2 * ROUNDING[dtype] * np.abs(expected))


@pytest.mark.parametrize("centered", [False, True])
def test_norm_rounds_before_the_weight_unless_centered(kernels, device, centered):
    """Values for which fp16 in the middle shows in the last place, not near a tie."""
    import torch

    x0, weight0 = 1.30078125, 1.9892578125
    x = torch.full((1, 64), x0, dtype=torch.float16, device=device)
    weight = torch.full((64,), weight0 - centered, dtype=torch.float16, device=device)
    out = Guarded((1, 64), "float16", device)
    kernels.bind_rmsnorm(x, weight, 0.5, centered, out.tensor, kernels.CONFIGS[0])()
    scaled = x0 / np.sqrt(x0**2 + 0.5)
    factor = scaled if centered else float(np.float16(scaled))
    np.testing.assert_array_equal(out.result(), float(np.float16(factor * weight0)))
    assert np.float16(scaled * weight0) != np.float16(float(np.float16(scaled)) * weight0)


@dtypes
@widths
def test_silu_mul(kernels, reference, device, dtype, width):
    gate, up = strided((3, width), dtype, device, 1), strided((3, width), dtype, device, 2, gap=5)
    out = Guarded((3, width), dtype, device)
    kernels.bind_silu_mul(gate, up, out.tensor, kernels.CONFIGS[0])()
    expected = reference.silu_mul(exact(gate), exact(up))
    assert_close(out.result(), expected, 2 * ROUNDING[dtype] * np.abs(expected))


@dtypes
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_sigmoid_mul(kernels, reference, device, dtype, head_dim):
    before, gate = normals((2, 3, head_dim), dtype, device), strided((2, 3, head_dim), dtype, device, 1)
    x = Guarded((2, 3, head_dim), dtype, device, before)
    kernels.bind_sigmoid_mul(x.tensor, gate, kernels.CONFIGS[0])()
    expected = reference.sigmoid_mul(exact(before), exact(gate))
    assert_close(x.result(), expected, 2 * ROUNDING[dtype] * np.abs(expected))


def check_qk(kernels, reference, device, dtype, head_dim, half, norm, config, *, m=3, context=7):
    """norm is None, "plain" or "centered". Places that are not the last m of the context stay NaN."""
    import torch

    heads, kv_heads, max_context = 4, 2, context + 5
    q = strided((m, heads, head_dim), dtype, device, 1)
    k, v = (normals((m, kv_heads * head_dim + 7), dtype, device, seed)[:, :-7] for seed in (2, 3))
    k, v = k.unflatten(1, (kv_heads, head_dim)), v.unflatten(1, (kv_heads, head_dim))
    weights = [normals((head_dim,), dtype, device, seed) if norm else None for seed in (4, 5)]
    angles = np.random.default_rng(6).uniform(0, 6, (max_context, half))
    cosine, sine = (torch.tensor(f(angles), dtype=torch.float32, device=device) for f in (np.cos, np.sin))
    q_out = Guarded((m, heads, head_dim), dtype, device)
    caches = [Guarded((kv_heads, max_context, head_dim), dtype, device) for _ in range(2)]
    kernels.bind_qk_norm_rope_cache(
        q, k, v, *weights, EPS, norm == "centered", cosine, sine, torch.tensor([context], device=device), q_out.tensor,
        *(cache.tensor for cache in caches), config,
    )()  # fmt: skip

    rows = slice(context - m, context)

    def expected(x, weight):
        normed = exact(x) if weight is None else reference.rmsnorm(exact(x), exact(weight) + (norm == "centered"), EPS)
        return reference.rotate(normed, exact(cosine)[rows], exact(sine)[rows])

    for actual, wanted in (
        (q_out.result(), expected(q, weights[0])),
        (caches[0].result()[:, rows].swapaxes(0, 1), expected(k, weights[1])),
    ):
        assert_close(actual, wanted, 4 * ROUNDING[dtype] * (1 + np.abs(wanted)))
    np.testing.assert_array_equal(caches[1].result()[:, rows].swapaxes(0, 1), exact(v))
    for cache in caches:
        rest = np.delete(cache.result(), np.r_[rows], axis=1)
        assert np.isnan(rest).all(), "written at another place"


@dtypes
@pytest.mark.parametrize("norm", [None, "plain", "centered"])
@pytest.mark.parametrize("head_dim, half", [(64, 32), (96, 48), (128, 16), (256, 128)])
def test_qk_norm_rope_cache(kernels, reference, device, dtype, norm, head_dim, half):
    check_qk(kernels, reference, device, dtype, head_dim, half, norm, kernels.CONFIGS[0])


@pytest.mark.parametrize("dtype, context", zip(DTYPES, (127, 128, 129), strict=True))
def test_places_beside_a_power_of_two(kernels, reference, device, dtype, context):
    for m in (1, 3):
        check_qk(kernels, reference, device, dtype, 64, 32, "plain", kernels.CONFIGS[0], m=m, context=context)


@pytest.mark.parametrize("index", range(5))
def test_every_config(kernels, reference, device, index):
    assert len(kernels.CONFIGS) == 5
    config = kernels.CONFIGS[index]
    check_qk(kernels, reference, device, "bfloat16", 64, 32, "plain", config, m=1, context=1)
    gate, up, out = (normals((2, 5000), "bfloat16", device, seed) for seed in (1, 2, 3))
    kernels.bind_silu_mul(gate, up, out, config)()
    expected = reference.silu_mul(exact(gate), exact(up))
    assert_close(exact(out), expected, 2 * ROUNDING["bfloat16"] * np.abs(expected))


def test_what_the_kernels_do_not_take(kernels, device):
    x, weight, config = normals((2, 8), "float32", device), normals((8,), "float32", device), kernels.CONFIGS[0]
    for wrong in (x.t(), x.half(), x.double()):
        with pytest.raises(ValueError, match="the kernel takes contiguous"):
            kernels.bind_rmsnorm(x, weight, EPS, False, wrong, config)
    q = normals((1, 2, 64), "float32", device)
    with pytest.raises(ValueError, match="both a norm or neither"):
        kernels.bind_qk_norm_rope_cache(q, q, q, weight, None, EPS, False, q, q, q, q, q, q, config)
