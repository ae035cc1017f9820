"""Triton's gated delta rule against float64, token by token and in chunks."""

from types import SimpleNamespace

import numpy as np
import pytest
from tensors import DTYPES, ROUNDING, Guarded, assert_close, exact, normals, strided

OP = "gated_delta_rule"
# Of single values and of the root of mean squares. The reference rounds where the kernels do: sums beside a tie may go
# either way, and what nearly cancels, or passes more roundings, is then some places off; all that are cut off are more.
TOLERANCE = {"bfloat16": 0.03, "float16": 0.004, "float32": 2e-5}
RMS_TOLERANCE = {"bfloat16": ROUNDING["bfloat16"], "float16": ROUNDING["float16"], "float32": 4e-6}
SHAPES = [(2, 2, 32, 48, 4), (2, 3, 48, 32, 4), (3, 1, 16, 16, 2), (1, 2, 128, 128, 4)]


@pytest.fixture
def bind_prefill():
    from harness.triton_kernels import load_triton

    return load_triton(OP, "triton_chunks.py").bind_prefill


def case(device, dtype, m, key_heads, group, key_dim, value_dim, taps, alike=False):
    """Inputs, weights and a state that was in use; with `alike` all keys are nearly one and nothing decays."""
    heads = key_heads * group
    channels = 2 * key_heads * key_dim + heads * value_dim
    qkv = strided((m, channels), dtype, device, 1)
    a_log, dt_bias = normals((heads,), "float32", device, 8), normals((heads,), "float32", device, 9)
    if alike:
        qkv[:, : 2 * key_heads * key_dim] = 1 + 0.01 * qkv[:, : 2 * key_heads * key_dim]
        dt_bias -= 12
    z, b, a = (
        strided((m, size), dtype, device, seed) for seed, size in ((2, heads * value_dim), (3, heads), (4, heads))
    )
    norm = 1 + normals((value_dim,), dtype, device, 6, 0.2)
    before = normals((taps - 1, channels), dtype, device, 5), normals((heads, key_dim, value_dim), "float32", device, 7)
    return SimpleNamespace(
        dtype=dtype, key_heads=key_heads, inputs=(qkv, z, b, a), before=before, out_shape=(m, heads * value_dim),
        weights=(normals((channels, taps), dtype, device, 10, 0.5), a_log, dt_bias, norm, 1e-6),
    )  # fmt: skip


def run(kernels, device, case, bind, config, rows=slice(None), before=None):
    """(out, conv state, state) of `bind` over some of the case's tokens, guards looked at."""
    conv, state = before or case.before
    conv = Guarded(tuple(conv.shape), case.dtype, device, conv)
    state = Guarded(tuple(state.shape), "float32", device, state)
    inputs = kernels.Inputs(*(part[rows] for part in case.inputs))
    out = Guarded((len(inputs.qkv), case.out_shape[1]), case.dtype, device)
    weights = kernels.Weights(*case.weights)
    bind(inputs, weights, kernels.State(conv.tensor, state.tensor), out.tensor, case.key_heads, config)()
    for guarded in (out, conv, state):
        guarded.result()
    return out.tensor, conv.tensor, state.tensor


def check(reference, case, out, conv, state):
    import torch

    weights = [weight if isinstance(weight, float) else exact(weight) for weight in case.weights]
    expected, conv_after, state_after = reference.gated_delta(
        *map(exact, case.inputs), reference.Weights(*weights), *map(exact, case.before), case.key_heads,
        lambda x: x if case.dtype == "float32" else exact(torch.tensor(x).to(getattr(torch, case.dtype))),
    )  # fmt: skip
    tolerance, expected = TOLERANCE[case.dtype], expected.reshape(case.out_shape)
    assert_close(exact(out), expected, tolerance * (1 + np.abs(expected)))
    assert np.linalg.norm(exact(out) - expected) <= RMS_TOLERANCE[case.dtype] * np.linalg.norm(expected)
    assert np.linalg.norm(exact(state) - state_after) <= RMS_TOLERANCE[case.dtype] * np.linalg.norm(state_after)
    assert_close(exact(state), state_after, tolerance * (1 + np.abs(state_after)))
    np.testing.assert_array_equal(exact(conv), conv_after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_token(kernels, reference, device, dtype, shape):
    one = case(device, dtype, 1, *shape)
    check(reference, one, *run(kernels, device, one, kernels.bind_decode, kernels.Config(16, 16, 1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_in_chunks(kernels, bind_prefill, reference, device, dtype, shape):
    prompt = case(device, dtype, 37, *shape)
    check(reference, prompt, *run(kernels, device, prompt, bind_prefill, kernels.Config(16, 16, 1)))


@pytest.mark.parametrize("m", [1, 2, 3, 4, 15, 16, 17, 32])
def test_tokens_beside_a_chunk(kernels, bind_prefill, reference, device, m):
    prompt = case(device, "float32", m, 1, 2, 32, 16, 4)
    check(reference, prompt, *run(kernels, device, prompt, bind_prefill, kernels.Config(16, 16, 1)))


@pytest.mark.parametrize("index", range(6))
def test_every_config(kernels, bind_prefill, reference, device, index):
    assert len(kernels.CONFIGS) == 6
    config = kernels.CONFIGS[index]
    for m, bind in ((1, kernels.bind_decode), (66, bind_prefill)):
        some = case(device, "bfloat16", m, 1, 1, 32, 80, 4)
        check(reference, some, *run(kernels, device, some, bind, config))


@pytest.mark.parametrize("chunk", [16, 64])
def test_keys_that_are_nearly_one(kernels, bind_prefill, reference, device, chunk):
    """The system's matrix has products of almost 1 everywhere: a series in its powers would cancel to nothing."""
    prompt = case(device, "float32", 64, 1, 1, 32, 16, 4, alike=True)
    check(reference, prompt, *run(kernels, device, prompt, bind_prefill, kernels.Config(16, chunk, 1)))


def test_chunked_is_step_by_step(kernels, bind_prefill, device):
    config, prompt = kernels.Config(16, 16, 1), case(device, "float32", 18, 1, 2, 32, 32, 4)
    chunked = run(kernels, device, prompt, bind_prefill, config)
    states, rows = prompt.before, []
    for token in range(18):
        out, *states = run(kernels, device, prompt, kernels.bind_decode, config, slice(token, token + 1), states)
        rows.append(exact(out))
    assert_close(exact(chunked[0]), np.concatenate(rows), 2e-5)
    np.testing.assert_array_equal(exact(chunked[1]), exact(states[0]))
    assert_close(exact(chunked[2]), exact(states[1]), 2e-5)


def test_a_prompt_in_two_launches(kernels, bind_prefill, device):
    config, prompt = kernels.Config(16, 16, 1), case(device, "float32", 21, 1, 2, 32, 32, 4)
    whole = run(kernels, device, prompt, bind_prefill, config)
    first, *states = run(kernels, device, prompt, bind_prefill, config, slice(0, 2))
    second, conv, state = run(kernels, device, prompt, bind_prefill, config, slice(2, None), states)
    assert_close(exact(whole[0]), np.concatenate((exact(first), exact(second))), 2e-5)
    np.testing.assert_array_equal(exact(whole[1]), exact(conv))
    assert_close(exact(whole[2]), exact(state), 2e-5)


def test_what_the_rule_does_not_take(kernels, bind_prefill, device):
    two = case(device, "float32", 2, 1, 2, 32, 16, 4)
    conv, state = two.before
    inputs, weights = kernels.Inputs(*two.inputs), kernels.Weights(*two.weights)
    out, config = normals(two.out_shape, "float32", device), kernels.CONFIGS[0]
    with pytest.raises(ValueError, match="a decode step has one"):
        kernels.bind_decode(inputs, weights, kernels.State(conv, state), out, 1, config)
    refused = [
        ((inputs._replace(qkv=inputs.qkv[:, :-1]), weights, kernels.State(conv, state), out, 1), "channels"),
        ((inputs, weights, kernels.State(conv.half(), state), out, 1), "not torch.float32"),
        ((inputs, weights, kernels.State(conv, state.half()), out, 1), "not torch.float32"),
        ((inputs._replace(b=inputs.b[:, :1]), weights, kernels.State(conv, state), out, 1), "not torch.float32"),
        ((inputs, weights, kernels.State(conv, state.transpose(1, 2).contiguous().transpose(1, 2)), out, 1), "strides"),
    ]
    for arguments, why in refused:
        with pytest.raises(ValueError, match=why):
            bind_prefill(*arguments, config)
