"""The Triton gemv against float64, with NaN between rows and around the output."""

import numpy as np
import pytest
from tensors import DTYPES, ROUNDING, Guarded, assert_close, exact, normals, strided

OP = "gemv"


def check(kernels, reference, device, dtype, m, n, k, config, *, has_bias=True):
    x, weight = strided((m, k), dtype, device, 1), strided((n, k), dtype, device, 2, gap=5)
    bias = normals((n,), dtype, device, 3) if has_bias else None
    out = Guarded((m, n + 4), dtype, device)
    launch = kernels.bind_gemv(x, weight, bias, out.tensor[:, :n], config)
    launch()
    first = out.result()
    assert np.isnan(first[:, n:]).all(), "written between rows"
    launch()
    np.testing.assert_array_equal(out.result(), first)
    expected = reference.gemv(exact(x), exact(weight), None if bias is None else exact(bias))
    terms = np.abs(exact(x)) @ np.abs(exact(weight)).T
    assert_close(first[:, :n], expected, ROUNDING[dtype] * np.abs(expected) + 2.0**-21 * terms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", range(1, 9))
def test_rows(kernels, reference, device, dtype, m):
    check(kernels, reference, device, dtype, m, 11, 300, kernels.Config(4, 128, 1, 1, ".cg"))


@pytest.mark.parametrize("split_k", [1, 3, 4])
@pytest.mark.parametrize("n, k", [(1, 1), (4, 128), (3, 127), (5, 129), (9, 1000)])
def test_ragged_sizes(kernels, reference, device, n, k, split_k):
    check(kernels, reference, device, "float32", 2, n, k, kernels.Config(4, 128, split_k, 1, ".cg"))


@pytest.mark.parametrize("split_k", [1, 4])
def test_no_bias(kernels, reference, device, split_k):
    config = kernels.Config(4, 128, split_k, 1, "")
    check(kernels, reference, device, "float16", 3, 10, 270, config, has_bias=False)


@pytest.mark.parametrize("index", range(11))
def test_every_config(kernels, reference, device, index):
    assert len(kernels.CONFIGS) == 11
    check(kernels, reference, device, "bfloat16", 2, 13, 4100, kernels.CONFIGS[index])


def test_what_the_product_does_not_take(kernels, device):
    x, weight, out = (normals(shape, "float32", device) for shape in ((2, 8), (6, 8), (2, 6)))
    config = kernels.CONFIGS[0]
    refused = [
        ((x.half(), weight, None, out), "one type"),
        ((normals((9, 8), "float32", device), weight, None, out), "1 to 8"),
        ((x, weight, None, out[:, :5]), "no product"),
        ((x, weight, out[0, :5], out), "no product"),
        ((x, weight.t().contiguous().t(), None, out), "neighbours"),
    ]
    for arguments, why in refused:
        with pytest.raises(ValueError, match=why):
            kernels.bind_gemv(*arguments, config)


@pytest.mark.parametrize("split_k", [1, 3])
def test_each_launch_counts_once(kernels, device, split_k):
    import torch

    x, weight, out = (normals(shape, "float32", device) for shape in ((2, 300), (9, 300), (2, 9)))
    calls = torch.tensor([5, 6, 7], device=device)
    launch = kernels.bind_gemv(x, weight, None, out, kernels.Config(4, 128, split_k, 1, ".cg"), calls[1])
    launch()
    launch()
    assert calls.tolist() == [5, 8, 7]
