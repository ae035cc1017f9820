"""kernels/gated_delta_rule against float64, in each build and over several splits."""

import numpy as np
import pytest
from native_calls import Guarded, assert_close, exact, stored

pytestmark = pytest.mark.compiler

TOLERANCE = {"bf16": 0.02, "f32": 2e-5}


def normals(shape, dtype, seed, scale=1.0):
    return stored(np.random.default_rng((seed, *shape)).standard_normal(shape) * scale, dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    "m, key_heads, group, key_dim, value_dim, taps", [(1, 5, 2, 32, 80, 4), (6, 2, 3, 48, 128, 4), (2, 9, 1, 16, 16, 2)]
)
def test_it_is_the_gated_delta_rule(
    kernels, pool, kernel_reference, dtype, m, key_heads, group, key_dim, value_dim, taps
):
    """Rows of a fused buffer; nothing beside the output and the state is written."""
    heads, channels = key_heads * group, 2 * key_heads * key_dim + key_heads * group * value_dim
    widths = np.cumsum([0, channels, heads * value_dim, heads, heads])
    width = int(widths[-1]) + 5
    rows = normals((m, width), dtype, 1)
    parts = [rows[:, begin:] for begin in widths[:4]]
    conv, norm = normals((channels, taps), dtype, 2, 0.5), stored(np.linspace(0.5, 1.5, value_dim), dtype)
    a_log, dt_bias = normals((heads,), "f32", 3), normals((heads,), "f32", 4)
    conv_state, state = Guarded((taps - 1, channels), dtype), Guarded((heads, key_dim, value_dim), "f32")
    conv_state.values[...] = normals((taps - 1, channels), dtype, 5)
    state.values[...] = normals((heads, key_dim, value_dim), "f32", 6, 0.3)
    before = exact(conv_state.values), exact(state.values)
    out = Guarded((m, heads, value_dim), dtype)
    kernels("gated_delta_rule")(
        f"gated_delta_rule_{dtype}", *parts, width, width, width, width, conv, a_log, dt_bias, norm, 1e-6,
        conv_state, state, out, m, key_heads, group, key_dim, value_dim, taps, pool[0],
    )  # fmt: skip

    reference = kernel_reference("gated_delta_rule")
    weights = reference.Weights(exact(conv), exact(a_log), exact(dt_bias), exact(norm), 1e-6)
    sizes = (channels, heads * value_dim, heads, heads)
    inputs = [exact(part)[:, :size] for part, size in zip(parts, sizes, strict=True)]
    expected, conv_after, state_after = reference.gated_delta(*inputs, weights, *before, key_heads)
    assert_close(out.result(), expected, TOLERANCE[dtype] * (1 + np.abs(expected)))
    assert_close(state.result(), state_after, TOLERANCE[dtype] * (1 + np.abs(state_after)))
    np.testing.assert_array_equal(conv_state.result(), conv_after)
