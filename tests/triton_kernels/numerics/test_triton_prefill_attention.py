"""Triton's prefill attention against float64, with NaN in all places that are not filled."""

import numpy as np
import pytest
from tensors import DTYPES, ROUNDING, SCORE_ERROR, Guarded, assert_close, exact, normals

OP = "prefill_attention"


def check(kernels, reference, device, dtype, m, context, group, head_dim, config, *, kv_heads=2):
    import torch

    heads = kv_heads * group
    rows = normals((m, heads + 1, head_dim + 8), dtype, device, 1)  # a fused buffer: strides of tokens and of heads
    q = rows[:, :heads, :head_dim]
    keys, values = (normals((kv_heads, context + 20, head_dim), dtype, device, seed) for seed in (2, 3))
    keys[:, context:] = values[:, context:] = float("nan")
    filled = torch.tensor([context], device=device)
    out = Guarded((m, heads, head_dim), dtype, device)
    kernels.bind_prefill(q, keys, values, filled, out.tensor, config)()
    expected = reference.prefill_attention(exact(q), exact(keys), exact(values), context)
    assert_close(out.result(), expected, ROUNDING[dtype] * (1 + np.abs(expected)) + SCORE_ERROR)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, context", [(1, 1), (1, 40), (16, 16), (17, 33), (33, 129), (40, 128)])
def test_last_tokens_of_a_context(kernels, reference, device, dtype, m, context):
    check(kernels, reference, device, dtype, m, context, 2, 64, kernels.Config(16, 32, 1, 1))


@pytest.mark.parametrize("group", [1, 3, 8])
def test_groups(kernels, reference, device, group):
    check(kernels, reference, device, "float32", 20, 45, group, 64, kernels.Config(16, 32, 1, 1))


@pytest.mark.parametrize("group", range(1, 9))
def test_each_group_beside_a_power_of_two(kernels, reference, device, group):
    """Each size with two groups, of two types."""
    m, context = [(1, 127), (16, 127), (33, 128), (1, 129)][group % 4]
    config = kernels.Config(16, 32, 1, 1)
    check(kernels, reference, device, DTYPES[group % 3], m, context, group, 64, config)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_head_dims(kernels, reference, device, dtype, head_dim):
    check(kernels, reference, device, dtype, 20, 50, 2, head_dim, kernels.Config(16, 32, 1, 1))


@pytest.mark.parametrize("head_dim", [16, 80, 112, 192])
def test_head_dims_between_powers_of_two(kernels, reference, device, head_dim):
    check(kernels, reference, device, "bfloat16", 18, 20, 2, head_dim, kernels.Config(16, 16, 1, 1), kv_heads=1)


@pytest.mark.parametrize("index", range(8))
def test_every_config(kernels, reference, device, index):
    assert len(kernels.CONFIGS) == 8
    check(kernels, reference, device, "bfloat16", 150, 180, 2, 64, kernels.CONFIGS[index], kv_heads=1)


def test_the_reference_is_decode_attention_of_each_token(reference, kernel_reference):
    rng = np.random.default_rng(0)
    q, keys, values = rng.standard_normal((3, 4, 8)), rng.standard_normal((2, 9, 8)), rng.standard_normal((2, 9, 8))
    decode = kernel_reference("decode_attention").decode_attention
    each = np.stack([decode(q[i], keys, values, 5 + i) for i in range(3)])
    np.testing.assert_allclose(reference.prefill_attention(q, keys, values, 7), each, rtol=1e-12)


def test_context_is_read_when_launched(kernels, reference, device):
    import torch

    q, out = normals((5, 2, 64), "float32", device), Guarded((5, 2, 64), "float32", device)
    keys, values = (normals((1, 60, 64), "float32", device, seed) for seed in (2, 3))
    context = torch.tensor([5], device=device)
    launch = kernels.bind_prefill(q, keys, values, context, out.tensor, kernels.Config(16, 16, 1, 1))
    for filled in (5, 60):
        context.fill_(filled)
        launch()
        assert_close(out.result(), reference.prefill_attention(exact(q), exact(keys), exact(values), filled), 1e-5)


def test_what_the_attention_does_not_take(kernels, device):
    import torch

    q, keys = normals((3, 2, 64), "float32", device), normals((2, 9, 64), "float32", device)
    context = torch.tensor([3], device=device)
    refused = [
        ((q.half(), keys, keys, context, q), "one type"),
        ((q[..., :40], keys[..., :40], keys[..., :40], context, q[..., :40]), "head_dim 40"),
        ((q, keys, keys[:, :4], context, q), "not alike"),
        ((q, keys, keys, context.int(), q), "context torch.int32"),
        ((q, keys, keys, context, q[:2]), "out"),
        ((q, keys, keys, context, q.transpose(0, 1).contiguous().transpose(0, 1)), "neighbours"),
    ]
    for arguments, why in refused:
        with pytest.raises(ValueError, match=why):
            kernels.bind_prefill(*arguments, kernels.CONFIGS[0])
