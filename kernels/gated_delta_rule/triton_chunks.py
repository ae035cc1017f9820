"""The gated delta rule of kernels/gated_delta_rule/triton_kernel.py for a prompt, in chunks.

A step a token would move S through memory m times, and never have enough rows for the matrix cores. Within a chunk of C
tokens, with G_i the sum of log decays up to i and S_0 the state before the chunk, the corrections
u_i = beta_i (v_i - S^T k_i) obey

    u_i + sum_{j<i} beta_i exp(G_i - G_j) (k_i . k_j) u_j = beta_i (v_i - exp(G_i) S_0^T k_i),     (I + A) U = B

with A strictly lower triangular (the WY form of Yang et al., 2024). (I + A)^-1 knows nothing of S_0: `invert` gets it
for all chunks at once, by forward substitution, which is stable where a series in powers of A is not. Only `chunks`
goes from chunk to chunk, all of it products:

    U = (I + A)^-1 B;   O = exp(G) Q S_0 + [exp(G_i - G_j) (q_i . k_j)]_{j<=i} U;   S = exp(G_C) S_0 + K'^T U

with K'_j = exp(G_C - G_j) k_j. All exponents are at most 0: nothing overflows.
"""

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_kernel import (
    Config,
    Inputs,
    State,
    Weights,
    betas,
    bind_convolution,
    bind_norm,
    check,
    in_turn,
    log_decay,
    units,
)


@triton.jit
def chunk_of(a, b, a_log, dt_bias, tokens, m, head, a_stride, b_stride):
    """(sums of log decays from the chunk's first token on, betas) [C]; after token m nothing decays or is corrected."""
    real = tokens < m
    decays = log_decay(
        tl.load(a + tokens * a_stride + head, mask=real, other=0.0), tl.load(a_log + head), tl.load(dt_bias + head)
    )
    beta = betas(tl.load(b + tokens * b_stride + head, mask=real, other=0.0))
    return tl.cumsum(tl.where(real, decays, 0.0), 0), tl.where(real, beta, 0.0)


@triton.jit
def decays_between(sums, later):
    """exp(G_i - G_j) where `later` [C, C] says that i counts for j, else 0."""
    return tl.where(later, tl.exp(tl.where(later, sums[:, None] - sums[None, :], 0.0)), 0.0)


@triton.jit(do_not_specialize=("m",))
def invert(
    mixed, b, a, a_log, dt_bias, inverse, m, key_heads, value_heads, channels, b_stride, a_stride,
    KEY_DIM: tl.constexpr, PADDED_KEY: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """inverse [chunks, value heads, C, C] = (I + A)^-1 of one chunk and value head, row after row."""
    chunk, head, d, i = tl.program_id(0), tl.program_id(1), tl.arange(0, PADDED_KEY), tl.arange(0, C)
    tokens = (chunk * C + i).to(tl.int64)
    column = (key_heads + head * key_heads // value_heads) * KEY_DIM
    inside = (tokens < m)[:, None] & (d < KEY_DIM)[None, :]
    k = units(tl.load(mixed + tokens[:, None] * channels + column + d[None, :], mask=inside, other=0.0), 1)
    sums, beta = chunk_of(a, b, a_log, dt_bias, tokens, m, head, a_stride, b_stride)
    products = tl.dot(k, tl.trans(k), input_precision="ieee")
    lower = beta[:, None] * decays_between(sums, i[:, None] > i[None, :]) * products
    result = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for row in range(1, C):  # rows before `row` are done: row_of_inverse = e_row - sum_j A[row, j] row_j
        factors = tl.sum(tl.where(i[:, None] == row, lower, 0.0), 0)
        known = tl.sum(factors[:, None] * result, 0)
        result = tl.where(i[:, None] == row, result - known[None, :], result)
    place = inverse + (chunk * value_heads + head).to(tl.int64) * C * C + i[:, None] * C + i[None, :]
    tl.store(place, result)


@triton.jit(do_not_specialize=("m",))
def chunks(
    mixed, b, a, a_log, dt_bias, inverse, state, out, m, key_heads, value_heads, channels, b_stride, a_stride,
    KEY_DIM: tl.constexpr, PADDED_KEY: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """All tokens for some columns of one value head's state, which stays in registers from chunk to chunk."""
    head, d, i = tl.program_id(1), tl.arange(0, PADDED_KEY), tl.arange(0, C)
    columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_key, in_value = d < KEY_DIM, columns < VALUE_DIM
    q_column = head * key_heads // value_heads * KEY_DIM
    place = state + (head.to(tl.int64) * KEY_DIM + d)[:, None] * VALUE_DIM + columns[None, :]
    inside = in_key[:, None] & in_value[None, :]
    s = tl.load(place, mask=inside, other=0.0)
    for chunk in range(0, tl.cdiv(m, C)):
        tokens = (chunk * C + i).to(tl.int64)
        real = (tokens < m)[:, None]
        keys = mixed + tokens[:, None] * channels + q_column + d[None, :]
        q = units(tl.load(keys, mask=real & in_key[None, :], other=0.0), 1) * KEY_DIM**-0.5
        k = units(tl.load(keys + key_heads * KEY_DIM, mask=real & in_key[None, :], other=0.0), 1)
        values = mixed + tokens[:, None] * channels + 2 * key_heads * KEY_DIM + head * VALUE_DIM + columns[None, :]
        v = tl.load(values, mask=real & in_value[None, :], other=0.0).to(tl.float32)
        sums, beta = chunk_of(a, b, a_log, dt_bias, tokens, m, head, a_stride, b_stride)
        grown, last = tl.exp(sums)[:, None], tl.sum(tl.where(i == C - 1, sums, 0.0), 0)
        t = tl.load(inverse + (chunk * value_heads + head).to(tl.int64) * C * C + i[:, None] * C + i[None, :])
        wanted = beta[:, None] * (v - grown * tl.dot(k, s, input_precision="ieee"))
        u = tl.dot(t, wanted, input_precision="ieee")
        attention = decays_between(sums, i[:, None] >= i[None, :]) * tl.dot(q, tl.trans(k), input_precision="ieee")
        o = grown * tl.dot(q, s, input_precision="ieee") + tl.dot(attention, u, input_precision="ieee")
        rows = out + (tokens[:, None] * value_heads + head) * VALUE_DIM + columns[None, :]
        tl.store(rows, o.to(out.dtype.element_ty), mask=real & in_value[None, :])
        s = tl.exp(last) * s + tl.dot(tl.trans(k * tl.exp(last - sums)[:, None]), u, input_precision="ieee")
    tl.store(place, s, mask=inside)


def bind_prefill(
    inputs: Inputs, weights: Weights, state: State, out: Tensor, num_key_heads: int, config: Config
) -> Callable[[], None]:
    """As triton_kernel.py's bind_decode, for m >= 1 tokens: out [m, value heads * value_dim]."""
    check(inputs, weights, state, out, num_key_heads)
    (m, channels), (value_heads, key_dim, value_dim) = inputs.qkv.shape, state.recurrent.shape
    num_chunks, c = triton.cdiv(m, config.chunk), config.chunk
    mixed = torch.empty_like(inputs.qkv, memory_format=torch.contiguous_format)
    inverse = torch.empty((num_chunks, value_heads, c, c), dtype=torch.float32, device=out.device)
    tensors = mixed, inputs.b, inputs.a, weights.a_log, weights.dt_bias, inverse
    sizes = m, num_key_heads, value_heads, channels, inputs.b.stride(0), inputs.a.stride(0)
    shape = {"KEY_DIM": key_dim, "PADDED_KEY": max(16, triton.next_power_of_2(key_dim)), "C": c}
    solve = functools.partial(invert[(num_chunks, value_heads)], *tensors, *sizes, **shape, num_warps=4)
    rule = functools.partial(
        chunks[(triton.cdiv(value_dim, config.block_v), value_heads)], *tensors, state.recurrent, out, *sizes, **shape,
        VALUE_DIM=value_dim, BLOCK_V=config.block_v, num_warps=config.num_warps, num_stages=1,
    )  # fmt: skip
    convolution = bind_convolution(inputs.qkv, weights.conv, state.conv, mixed)
    return in_turn(convolution, solve, rule, bind_norm(out, inputs.z, weights))
