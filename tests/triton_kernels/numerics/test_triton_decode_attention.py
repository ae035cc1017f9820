"""Triton's decode attention against float64, with NaN in all places that are not filled."""

import numpy as np
import pytest
from tensors import DTYPES, ROUNDING, SCORE_ERROR, Guarded, assert_close, exact, normals

OP = "decode_attention"
BLOCK_SIZE = 16


def caches(contexts, kv_heads, head_dim, dtype, device):
    """Keys and values [requests, kv_heads, max_context, head_dim]; each request's rest is NaN."""
    shape = (len(contexts), kv_heads, max(contexts) + 9, head_dim)
    tensors = normals(shape, dtype, device, 1), normals(shape, dtype, device, 2)
    for tensor in tensors:
        for request, context in enumerate(contexts):
            tensor[request, :, context:] = float("nan")
    return tensors


def paged(cache, seed=0):
    """(blocks [num_blocks, BLOCK_SIZE, kv_heads, head_dim] in random order, some unused; int32 table)."""
    import torch

    requests, kv_heads, max_context, head_dim = cache.shape
    per_request = -(-max_context // BLOCK_SIZE)
    order = np.random.default_rng(seed).permutation(requests * per_request + 3)[: requests * per_request]
    table = torch.tensor(order.reshape(requests, per_request), dtype=torch.int32, device=cache.device)
    blocks = cache.new_full((requests * per_request + 3, BLOCK_SIZE, kv_heads, head_dim), float("nan"))
    for request in range(requests):
        for place in range(max_context):
            block = int(table[request, place // BLOCK_SIZE])
            blocks[block, place % BLOCK_SIZE] = cache[request, :, place]
    return blocks, table


def check(kernels, reference, device, dtype, contexts, group, head_dim, config, *, kv_heads=2, scale=1.0):
    import torch

    q = normals((len(contexts), kv_heads * group, head_dim), dtype, device, 3, scale)
    keys, values = caches(contexts, kv_heads, head_dim, dtype, device)
    context = torch.tensor(contexts, device=device)
    out, out_paged = Guarded(tuple(q.shape), dtype, device), Guarded(tuple(q.shape), dtype, device)
    kernels.bind_contiguous(q, keys, values, context, out.tensor, config)()
    blocks, table = paged(keys)
    kernels.bind_paged(q, blocks, paged(values)[0], table, context, out_paged.tensor, config)()
    expected = np.stack(
        [
            reference.decode_attention(exact(q[i]), exact(keys[i]), exact(values[i]), contexts[i])
            for i in range(len(contexts))
        ]
    )
    # Weights are rounded to the storage type for the matrix cores, where several rows share a key: one more rounding.
    assert_close(out.result(), expected, ROUNDING[dtype] * (1 + np.abs(expected)) + SCORE_ERROR)
    np.testing.assert_array_equal(out_paged.result(), out.result())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context", [1, 2, 31, 32, 33, 127, 128, 129])
def test_contexts(kernels, reference, device, dtype, context):
    check(kernels, reference, device, dtype, [context], 2, 64, kernels.Config(32, 3, 1, 1))


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("group", range(1, 9))
def test_groups(kernels, reference, device, group, num_splits):
    check(kernels, reference, device, "float32", [50], group, 64, kernels.Config(16, num_splits, 1, 1), kv_heads=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_head_dims(kernels, reference, device, dtype, group, head_dim):
    check(kernels, reference, device, dtype, [70], group, head_dim, kernels.Config(32, 2, 1, 1))


@pytest.mark.parametrize("group, head_dim", [(1, 80), (12, 112), (16, 64), (2, 192), (16, 16)])
def test_sizes_between_powers_of_two(kernels, reference, device, group, head_dim):
    check(kernels, reference, device, "float16", [40], group, head_dim, kernels.Config(32, 2, 1, 1), kv_heads=1)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("num_splits", [1, 5])
def test_requests_of_different_contexts(kernels, reference, device, group, num_splits):
    check(kernels, reference, device, "float32", [1, 129, 40], group, 64, kernels.Config(16, num_splits, 1, 1))


@pytest.mark.parametrize("index", range(8))
def test_every_config(kernels, reference, device, index):
    assert len(kernels.CONFIGS) == 8
    check(kernels, reference, device, "bfloat16", [300], 4, 64, kernels.CONFIGS[index], kv_heads=1)


@pytest.mark.parametrize("group", [1, 2])
def test_large_scores(kernels, device, reference, group):
    """Weights of almost one and almost zero, the largest anywhere: the running maximum at work."""
    import torch

    q = normals((1, group, 64), "float32", device, 3, 40.0)
    keys, values = caches([300], 1, 64, "float32", device)
    out = Guarded((1, group, 64), "float32", device)
    context = torch.tensor([300], device=device)
    kernels.bind_contiguous(q, keys, values, context, out.tensor, kernels.Config(32, 3, 1, 1))()
    expected = reference.decode_attention(exact(q[0]), exact(keys[0]), exact(values[0]), 300)
    assert_close(out.result()[0], expected, 1e-3)  # scores of some hundred: their last bits are 1e-5


def test_context_is_read_when_launched(kernels, reference, device):
    import torch

    q, out = normals((1, 2, 64), "float32", device), Guarded((1, 2, 64), "float32", device)
    keys, values = caches([60], 2, 64, "float32", device)
    context = torch.tensor([7], device=device)
    launch = kernels.bind_contiguous(q, keys, values, context, out.tensor, kernels.Config(16, 2, 1, 1))
    for filled in (7, 60):
        context.fill_(filled)
        launch()
        expected = reference.decode_attention(exact(q[0]), exact(keys[0]), exact(values[0]), filled)
        assert_close(out.result()[0], expected, 1e-5)


def test_what_the_attention_does_not_take(kernels, device):
    import torch

    q, out = normals((1, 2, 64), "float32", device), normals((1, 2, 64), "float32", device)
    keys, context = normals((1, 2, 9, 64), "float32", device), torch.tensor([3], device=device)
    config = kernels.CONFIGS[0]
    many = normals((1, 34, 64), "float32", device)
    refused = [
        ((q.half(), keys, keys, context, out), "one type"),
        ((q[..., :40], keys[..., :40], keys[..., :40], context, out[..., :40]), "head_dim 40"),
        ((many, keys, keys, context, many), "a group 1 to 16 of them"),
        ((q, keys, keys[:, :, :4], context, out), "not alike"),
        ((q, keys, keys, context.float(), out), "context torch.float32"),
        ((q.transpose(1, 2).contiguous().transpose(1, 2), keys, keys, context, out), "contiguous"),
    ]
    for arguments, why in refused:
        with pytest.raises(ValueError, match=why):
            kernels.bind_contiguous(*arguments, config)
    with pytest.raises(ValueError, match="block table is int32"):
        kernels.bind_paged(q, keys, keys, context[None], context, out, config)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("group", [1, 4])
def test_a_request_that_fills_up_the_batch_gets_zeros(kernels, device, group, num_splits):
    """No place of its is read: all of them are NaN. Contexts are int32, as servers keep them."""
    import torch

    contexts, config = [20, 0, 7], kernels.Config(16, num_splits, 1, 1)
    q = normals((3, 2 * group, 64), "float32", device, 3)
    keys, values = caches(contexts, 2, 64, "float32", device)
    blocks, table = paged(keys)
    out = Guarded(tuple(q.shape), "float32", device)
    context = torch.tensor(contexts, dtype=torch.int32, device=device)
    kernels.bind_paged(q, blocks, paged(values)[0], table, context, out.tensor, config)()
    result = out.result()
    assert (result[1] == 0).all() and np.isfinite(result).all() and (result[[0, 2]] != 0).any(axis=(1, 2)).all()


@pytest.mark.parametrize("num_splits", [1, 3])
def test_each_launch_counts_once(kernels, device, num_splits):
    """Over blocks that have keys and values of a place side by side."""
    import torch

    q = normals((2, 4, 64), "float32", device, 3)
    keys, values = caches([9, 30], 2, 64, "float32", device)
    blocks, table = paged(torch.cat((keys, values), -1))
    out, context = Guarded(tuple(q.shape), "float32", device), torch.tensor([9, 30], device=device)
    calls = torch.tensor([5, 6, 7], device=device)
    launch = kernels.bind_paged(
        q,
        blocks[..., :64],
        blocks[..., 64:],
        table,
        context,
        out.tensor,
        kernels.Config(16, num_splits, 1, 1),
        calls[1],
    )
    launch()
    first = out.result()
    launch()
    assert calls.tolist() == [5, 8, 7] and np.isfinite(first).all()
    np.testing.assert_array_equal(out.result(), first)
