"""kernels/gated_delta_rule/gpu.cu, one decode step, against float64."""

import numpy as np
import pytest
from native_calls import Guarded, assert_close, exact, stored

TOLERANCE = {"bf16": 0.02, "f16": 0.003, "f32": 2e-5}


def normals(shape, dtype, seed, scale=1.0):
    return stored(np.random.default_rng((seed, *shape)).standard_normal(shape) * scale, dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(
    "key_heads, group, key_dim, value_dim, taps", [(2, 2, 128, 128, 4), (3, 1, 36, 80, 4), (1, 3, 256, 20, 2)]
)
def test_it_is_the_gated_delta_rule(gpu, kernel_reference, dtype, key_heads, group, key_dim, value_dim, taps):
    """Nothing beside the output, the scratch and the states is written."""
    heads, channels = key_heads * group, 2 * key_heads * key_dim + key_heads * group * value_dim
    sizes = (channels, heads * value_dim, heads, heads)
    inputs = [normals((1, size), dtype, seed) for seed, size in enumerate(sizes, 10)]
    conv, norm = normals((channels, taps), dtype, 2, 0.5), stored(np.linspace(0.5, 1.5, value_dim), dtype)
    a_log, dt_bias = normals((heads,), "f32", 3), normals((heads,), "f32", 4)
    conv_state, state = Guarded((taps - 1, channels), dtype), Guarded((heads, key_dim, value_dim), "f32")
    conv_state.values[...] = normals((taps - 1, channels), dtype, 5)
    state.values[...] = normals((heads, key_dim, value_dim), "f32", 6, 0.3)
    before = exact(conv_state.values), exact(state.values)
    out, scratch = Guarded((1, heads, value_dim), dtype), Guarded((heads, value_dim), "f32")
    result = gpu(
        "gated_delta_rule", f"gated_delta_rule_{dtype}", *inputs, *sizes, conv, a_log, dt_bias, norm, 1e-6,
        conv_state, state, out, 1, key_heads, group, key_dim, value_dim, taps, scratch,
    )  # fmt: skip
    assert result == 0
    scratch.result()

    reference = kernel_reference("gated_delta_rule")
    weights = reference.Weights(exact(conv), exact(a_log), exact(dt_bias), exact(norm), 1e-6)
    expected, conv_after, state_after = reference.gated_delta(*map(exact, inputs), weights, *before, key_heads)
    assert_close(out.result(), expected, TOLERANCE[dtype] * (1 + np.abs(expected)))
    assert_close(state.result(), state_after, TOLERANCE[dtype] * (1 + np.abs(state_after)))
    np.testing.assert_array_equal(conv_state.result(), conv_after)


@pytest.mark.parametrize("m, key_dim, value_dim, code", [(2, 32, 32, -2), (1, 257, 32, -2), (1, 32, 30, -3)])
def test_what_it_refuses(gpu, m, key_dim, value_dim, code):
    nothing = [None] * 4
    sizes = (m, 1, 1, key_dim, value_dim, 4)
    arguments = (*nothing, 0, 0, 0, 0, *nothing, 1e-6, None, None, None, *sizes, None)
    assert gpu("gated_delta_rule", "gated_delta_rule_f32", *arguments) == code
