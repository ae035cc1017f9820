"""The gated delta rule between its projections, in Triton, for one request: one token, or a prompt in chunks.

    S = decay S;   S += k (beta (v - S^T k))^T;   o = S^T q         one S [key_dim, value_dim] a value head, in place

A decode step reads and writes all of S once, whatever the context: `step` streams it. For a prompt, a step a token
would move S through memory m times, and never have enough rows for the matrix cores. Within a chunk of C tokens, with
G_i the sum of log decays up to i and S_0 the state before the chunk, the corrections u_i = beta_i (v_i - S^T k_i) obey

    u_i + sum_{j<i} beta_i exp(G_i - G_j) (k_i . k_j) u_j = beta_i (v_i - exp(G_i) S_0^T k_i),     (I + A) U = B

with A strictly lower triangular (the WY form of Yang et al., 2024). (I + A)^-1 knows nothing of S_0: `invert` gets it
for all chunks at once, by forward substitution, which is stable where a series in powers of A is not. Only `chunks`
goes from chunk to chunk, all of it products:

    U = (I + A)^-1 B;   O = exp(G) Q S_0 + [exp(G_i - G_j) (q_i . k_j)]_{j<=i} U;   S = exp(G_C) S_0 + K'^T U

with K'_j = exp(G_C - G_j) k_j. All exponents are at most 0: nothing overflows. State and arithmetic are fp32; the
storage type rounds where transformers' Qwen3.5 rounds.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_DIM = 256


@dataclass(frozen=True)
class Config:
    """How state and tokens are shared out."""

    block_v: int
    """Columns of the state a program, at least 16: it has all of key_dim, so columns do not depend on each other."""
    chunk: int
    """Tokens solved at once, 16 to 64; a decode step has no use for it."""
    num_warps: int


CONFIGS = (
    # 32 value heads of 128 columns are 4096 columns: blocks of 16 make 256 programs, of 64 still 64. Rows of the state
    # are value_dim * 4 bytes apart: 16 columns are two sectors of 32 bytes, 32 are a whole line of 128.
    # Products are "ieee", plain fp32, since a state is carried through all of a prompt. CUDA has no matrix cores for
    # that and keeps rows in registers, which larger chunks or blocks spill (8 warps and 16 by 16 do not, on sm_90).
    Config(16, 16, 4),
    Config(16, 16, 8),
    Config(32, 16, 4),
    Config(32, 16, 8),
    Config(32, 32, 4),
    Config(64, 32, 8),
)


class Inputs(NamedTuple):
    """What the projections give m tokens, of one type; rows may have a stride."""

    qkv: Tensor  # [m, channels]: queries and keys of all key heads, then all values
    z: Tensor  # [m, value heads * value_dim]
    b: Tensor  # [m, value heads]
    a: Tensor  # [m, value heads]


class Weights(NamedTuple):
    """Of one layer, contiguous."""

    conv: Tensor  # [channels, taps], the newest tap last
    a_log: Tensor  # [value heads]
    dt_bias: Tensor  # [value heads]
    norm: Tensor  # [value_dim]
    eps: float


class State(NamedTuple):
    """Contiguous, changed in place."""

    conv: Tensor  # [taps - 1, channels], the oldest first
    recurrent: Tensor  # fp32 [value heads, key_dim, value_dim]


@triton.jit
def inputs_at(position, wanted, qkv, conv_state, channel, channels, qkv_stride, TAPS: tl.constexpr):
    """[positions, channels]: of the new tokens from 0 on, before that of the state, whose last row is position -1."""
    new, kept = wanted & (position >= 0)[:, None], wanted & (position < 0)[:, None]
    x = tl.load(qkv + position.to(tl.int64)[:, None] * qkv_stride + channel[None, :], mask=new, other=0.0)
    old = tl.load(conv_state + (position + TAPS - 1)[:, None] * channels + channel[None, :], mask=kept, other=0.0)
    return tl.where((position >= 0)[:, None], x, old)


@triton.jit
def remember(qkv, conv_state, m, channel, channels, qkv_stride, TAPS: tl.constexpr, PADDED_TAPS: tl.constexpr):
    """The newest TAPS - 1 inputs become the state."""
    row = tl.arange(0, PADDED_TAPS)
    wanted = (row < TAPS - 1)[:, None] & (channel < channels)[None, :]
    newest = inputs_at(m - (TAPS - 1) + row, wanted, qkv, conv_state, channel, channels, qkv_stride, TAPS)
    tl.debug_barrier()  # all lanes have read the old state before one of them writes the new
    tl.store(conv_state + row[:, None] * channels + channel[None, :], newest, mask=wanted)


@triton.jit
def convolve(
    qkv, weight, conv_state, out, m, channels, qkv_stride,
    TAPS: tl.constexpr, PADDED_TAPS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [m, channels] = silu of each channel's causal convolution; the newest inputs become conv_state.

    The first tokens need the old state, and are all in the first block (TOKENS >= TAPS - 1): so that program alone
    reads the state, and may write it.
    """
    block = tl.program_id(1)
    channel, token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), block * TOKENS + tl.arange(0, TOKENS)
    inside, sums = (token < m)[:, None] & (channel < channels)[None, :], tl.zeros([TOKENS, BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        x = inputs_at(token - (TAPS - 1) + tap, inside, qkv, conv_state, channel, channels, qkv_stride, TAPS)
        tap_weights = tl.load(weight + channel * TAPS + tap, mask=channel < channels, other=0.0).to(tl.float32)
        sums += x.to(tl.float32) * tap_weights[None, :]
    sums = sums.to(out.dtype.element_ty).to(tl.float32)
    values = (sums / (1 + tl.exp(-sums))).to(out.dtype.element_ty)
    tl.store(out + token.to(tl.int64)[:, None] * channels + channel[None, :], values, mask=inside)
    if block == 0:
        remember(qkv, conv_state, m, channel, channels, qkv_stride, TAPS, PADDED_TAPS)


@triton.jit
def log_decay(a, a_log, dt_bias):
    """-exp(a_log) softplus(a + dt_bias): at most 0."""
    x = a.to(tl.float32) + dt_bias.to(tl.float32)
    return -tl.exp(a_log.to(tl.float32)) * tl.where(x > 20.0, x, tl.log(1 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def betas(b):
    """sigmoid(b), rounded to b's type."""
    return (1 / (1 + tl.exp(-b.to(tl.float32)))).to(b.dtype).to(tl.float32)


@triton.jit
def units(x, AXIS: tl.constexpr):
    """x / |x| over an axis, fp32; 1e-6 as in kernels/gated_delta_rule/reference.py."""
    x = x.to(tl.float32)
    return x / tl.sqrt(tl.sum(x * x, AXIS, keep_dims=True) + 1e-6)


@triton.jit
def step(
    mixed, b, a, a_log, dt_bias, state, out, key_heads, value_heads,
    KEY_DIM: tl.constexpr, PADDED_KEY: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One token, some columns of one value head's state: out [value heads, value_dim], not yet normed."""
    head, d = tl.program_id(1), tl.arange(0, PADDED_KEY)
    columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    key_head, in_key, in_value = head * key_heads // value_heads, d < KEY_DIM, columns < VALUE_DIM
    # The state first: nothing else takes as long. Along a row, 4 neighbouring fp32 a lane are one load of 128 bits.
    place = state + (head.to(tl.int64) * KEY_DIM + d)[:, None] * VALUE_DIM + columns[None, :]
    inside = in_key[:, None] & in_value[None, :]
    before = tl.load(place, mask=inside, other=0.0)
    q = units(tl.load(mixed + key_head * KEY_DIM + d, mask=in_key, other=0.0), 0)
    k = units(tl.load(mixed + (key_heads + key_head) * KEY_DIM + d, mask=in_key, other=0.0), 0)
    v = tl.load(mixed + 2 * key_heads * KEY_DIM + head * VALUE_DIM + columns, mask=in_value, other=0.0).to(tl.float32)
    decay = tl.exp(log_decay(tl.load(a + head), tl.load(a_log + head), tl.load(dt_bias + head)))
    decayed = decay * before
    correction = betas(tl.load(b + head)) * (v - tl.sum(decayed * k[:, None], 0))
    after = decayed + k[:, None] * correction[None, :]
    tl.store(place, after, mask=inside)
    o = tl.sum(after * (q * KEY_DIM**-0.5)[:, None], 0)
    tl.store(out + head * VALUE_DIM + columns, o.to(out.dtype.element_ty), mask=in_value)


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


@triton.jit
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


@triton.jit
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


@triton.jit
def gated_norm(out, z, weight, eps, value_heads, z_stride, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """One head of one token, in place: norm(o), times silu of the gate."""
    head, token, d = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    inside, place = d < VALUE_DIM, out + (token * value_heads + head) * VALUE_DIM + d
    o = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(z + token * z_stride + head * VALUE_DIM + d, mask=inside, other=0.0).to(tl.float32)
    scaled = (o / tl.sqrt(tl.sum(o * o, 0) / VALUE_DIM + eps)).to(out.dtype.element_ty).to(tl.float32)
    normed = (scaled * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)).to(out.dtype.element_ty)
    result = normed.to(tl.float32) * gate / (1 + tl.exp(-gate))
    tl.store(place, result.to(out.dtype.element_ty), mask=inside)


def bind_decode(
    inputs: Inputs, weights: Weights, state: State, out: Tensor, num_key_heads: int, config: Config
) -> Callable[[], None]:
    """One token: out [1, value heads * value_dim], and the next state in place.

    Value head h is served by key head h * num_key_heads // value heads. One type, bf16, fp16 or fp32, but for the
    recurrent state, a_log and dt_bias.
    """
    _check(inputs, weights, state, out, num_key_heads)
    if len(out) != 1:
        raise ValueError(f"{len(out)} tokens: a decode step has one, bind_prefill takes more")
    value_heads, key_dim, value_dim = state.recurrent.shape
    mixed = torch.empty_like(inputs.qkv, memory_format=torch.contiguous_format)
    rule = functools.partial(
        step[(triton.cdiv(value_dim, config.block_v), value_heads)],
        mixed, inputs.b, inputs.a, weights.a_log, weights.dt_bias, state.recurrent, out, num_key_heads, value_heads,
        KEY_DIM=key_dim, PADDED_KEY=triton.next_power_of_2(key_dim), VALUE_DIM=value_dim, BLOCK_V=config.block_v,
        num_warps=config.num_warps,
    )  # fmt: skip
    return _in_turn(
        _bind_convolution(inputs.qkv, weights.conv, state.conv, mixed), rule, _bind_norm(out, inputs.z, weights)
    )


def bind_prefill(
    inputs: Inputs, weights: Weights, state: State, out: Tensor, num_key_heads: int, config: Config
) -> Callable[[], None]:
    """As bind_decode, for m >= 1 tokens: out [m, value heads * value_dim]."""
    _check(inputs, weights, state, out, num_key_heads)
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
    convolution = _bind_convolution(inputs.qkv, weights.conv, state.conv, mixed)
    return _in_turn(convolution, solve, rule, _bind_norm(out, inputs.z, weights))


def _in_turn(*launches: Callable[[], None]) -> Callable[[], None]:
    def launch() -> None:
        for each in launches:
            each()

    return launch


def _bind_convolution(qkv: Tensor, weight: Tensor, conv_state: Tensor, mixed: Tensor) -> Callable[[], None]:
    (m, channels), taps, block = qkv.shape, weight.shape[1], 256
    padded = triton.next_power_of_2(taps)
    tokens = padded if m == 1 else max(16, padded)
    return functools.partial(
        convolve[(triton.cdiv(channels, block), triton.cdiv(m, tokens))],
        qkv, weight, conv_state, mixed, m, channels, qkv.stride(0),
        TAPS=taps, PADDED_TAPS=padded, TOKENS=tokens, BLOCK=block, num_warps=4,
    )  # fmt: skip


def _bind_norm(out: Tensor, z: Tensor, weights: Weights) -> Callable[[], None]:
    value_dim = len(weights.norm)
    value_heads = out.shape[1] // value_dim
    return functools.partial(
        gated_norm[(value_heads, len(out))], out, z, weights.norm, weights.eps, value_heads, z.stride(0),
        VALUE_DIM=value_dim, BLOCK=triton.next_power_of_2(value_dim), num_warps=1,
    )  # fmt: skip


def _check(inputs: Inputs, weights: Weights, state: State, out: Tensor, num_key_heads: int) -> None:
    """A kernel gets addresses: another shape, type or stride would be read and written without a word."""
    (m, channels), (heads, key_dim, value_dim), taps = inputs.qkv.shape, state.recurrent.shape, weights.conv.shape[1]
    if heads % num_key_heads or channels != 2 * num_key_heads * key_dim + heads * value_dim or taps < 2:
        raise ValueError(
            f"{channels} channels, {taps} taps, {num_key_heads} key heads, {heads} of {key_dim, value_dim}"
        )
    if max(key_dim, value_dim) > MAX_DIM:
        raise ValueError(f"heads of {key_dim} and {value_dim}: the kernel has {MAX_DIM} at most")
    kind, values = inputs.qkv.dtype, heads * value_dim
    contiguous = (
        (weights.conv, kind, (channels, taps)), (weights.norm, kind, (value_dim,)), (out, kind, (m, values)),
        (state.conv, kind, (taps - 1, channels)), (state.recurrent, torch.float32, (heads, key_dim, value_dim)),
        (weights.a_log, weights.a_log.dtype, (heads,)), (weights.dt_bias, weights.dt_bias.dtype, (heads,)),
    )  # fmt: skip
    strided = (inputs.qkv, kind, (m, channels)), (inputs.z, kind, (m, values)), (inputs.b, kind, (m, heads)), (
        inputs.a, kind, (m, heads))  # fmt: skip
    for tensor, dtype, shape in (*contiguous, *strided):
        if tensor.dtype != dtype or tensor.dtype not in DTYPES or tensor.shape != shape or tensor.stride(-1) != 1:
            raise ValueError(f"{tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}: not {dtype} {shape}")
    if not all(tensor.is_contiguous() for tensor, _, _ in contiguous):
        raise ValueError("weights, states and out have to be contiguous")
