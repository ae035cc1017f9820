"""The gated delta rule between its projections, in Triton, for one request: one token.

    S = decay S;   S += k (beta (v - S^T k))^T;   o = S^T q         one S [key_dim, value_dim] a value head, in place

A step reads and writes all of S once, whatever the context: `step` streams it. The convolution before it and the gated
norm behind it are those of a prompt as well, which triton_chunks.py has. State and arithmetic are fp32; the storage
type rounds where transformers' Qwen3.5 rounds.
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


# Triton compiles anew for a multiple of 16: not for the length of a prompt.
@triton.jit(do_not_specialize=("m",))
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
    check(inputs, weights, state, out, num_key_heads)
    if len(out) != 1:
        raise ValueError(f"{len(out)} tokens: a decode step has one, triton_chunks.py takes more")
    value_heads, key_dim, value_dim = state.recurrent.shape
    mixed = torch.empty_like(inputs.qkv, memory_format=torch.contiguous_format)
    rule = functools.partial(
        step[(triton.cdiv(value_dim, config.block_v), value_heads)],
        mixed, inputs.b, inputs.a, weights.a_log, weights.dt_bias, state.recurrent, out, num_key_heads, value_heads,
        KEY_DIM=key_dim, PADDED_KEY=triton.next_power_of_2(key_dim), VALUE_DIM=value_dim, BLOCK_V=config.block_v,
        num_warps=config.num_warps,
    )  # fmt: skip
    return in_turn(
        bind_convolution(inputs.qkv, weights.conv, state.conv, mixed), rule, bind_norm(out, inputs.z, weights)
    )


def in_turn(*launches: Callable[[], None]) -> Callable[[], None]:
    """One launch of several, in this order."""

    def launch() -> None:
        for each in launches:
            each()

    return launch


def bind_convolution(qkv: Tensor, weight: Tensor, conv_state: Tensor, mixed: Tensor) -> Callable[[], None]:
    """mixed [m, channels] becomes the convolved qkv, conv_state the newest inputs."""
    (m, channels), taps, block = qkv.shape, weight.shape[1], 256
    padded = triton.next_power_of_2(taps)
    tokens = padded if m == 1 else max(16, padded)
    return functools.partial(
        convolve[(triton.cdiv(channels, block), triton.cdiv(m, tokens))],
        qkv, weight, conv_state, mixed, m, channels, qkv.stride(0),
        TAPS=taps, PADDED_TAPS=padded, TOKENS=tokens, BLOCK=block, num_warps=4,
    )  # fmt: skip


def bind_norm(out: Tensor, z: Tensor, weights: Weights) -> Callable[[], None]:
    """out [m, value heads * value_dim], normed a head and gated by z, in place."""
    value_dim = len(weights.norm)
    value_heads = out.shape[1] // value_dim
    return functools.partial(
        gated_norm[(value_heads, len(out))], out, z, weights.norm, weights.eps, value_heads, z.stride(0),
        VALUE_DIM=value_dim, BLOCK=triton.next_power_of_2(value_dim), num_warps=1,
    )  # fmt: skip


def check(inputs: Inputs, weights: Weights, state: State, out: Tensor, num_key_heads: int) -> None:
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
