"""What a decode step does between products and attention, in Triton, fused so that each costs one launch.

They read little: at batch one a launch costs more than the bytes do. So a program takes a whole row, keeps it in
registers between its sum of squares and its scaling, and what comes in one after the other goes out in one kernel.
Storage types are bf16, fp16 and fp32; arithmetic is fp32 and rounds where transformers' Llama and Qwen models round.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Config:
    """What a program has."""

    block: int
    """Elements of a row that a program of silu_mul takes; norms take a whole row, heads a whole head."""
    num_warps: int


CONFIGS = (
    # A row of 4096 bf16 is 8 KiB: 4 warps of 32 lanes load it in 4 loads of 128 bits a lane, 16 in one.
    Config(256, 1),
    Config(512, 2),
    Config(1024, 4),
    Config(2048, 8),
    Config(4096, 16),
)


@triton.jit
def scaled(x, inverse_rms, weight, TYPE: tl.constexpr, CENTERED: tl.constexpr):
    """x / rms, rounded, times the weight; a centered weight is its distance from 1 and nothing is rounded before it."""
    return x * inverse_rms * (1 + weight) if CENTERED else (x * inverse_rms).to(TYPE).to(tl.float32) * weight


@triton.jit
def rmsnorm(
    x, delta, weight, out, eps, width, ADD: tl.constexpr, CENTERED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row. With ADD, x += delta comes first and x keeps the sum."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width  # what is outside counts as 0 in the sum of squares
    values = tl.load(x + row + columns, mask=inside, other=0.0)
    if ADD:
        values = (values.to(tl.float32) + tl.load(delta + row + columns, mask=inside, other=0.0).to(tl.float32)).to(
            x.dtype.element_ty
        )
        tl.store(x + row + columns, values, mask=inside)
    values = values.to(tl.float32)
    inverse_rms = 1 / tl.sqrt(tl.sum(values * values, 0) / width + eps)
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    result = scaled(values, inverse_rms, w, x.dtype.element_ty, CENTERED)
    tl.store(out + row + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul(gate, up, out, width, gate_stride, up_stride, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    g = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    activated = (g / (1 + tl.exp(-g))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (activated * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def sigmoid_mul(x, gate, heads, gate_stride, gate_head_stride, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    head, token, d = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    g = tl.load(gate + token * gate_stride + head * gate_head_stride + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    place = x + (token * heads + head) * HEAD_DIM + d
    weight = (1 / (1 + tl.exp(-g))).to(x.dtype.element_ty).to(tl.float32)
    values = tl.load(place, mask=d < HEAD_DIM, other=0.0).to(tl.float32) * weight
    tl.store(place, values.to(x.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def normed_and_turned(
    source, weight, eps, cosine, sine, HAS_NORM: tl.constexpr, CENTERED: tl.constexpr, HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head: element d and its partner d +- HALF turn by an angle, those from 2 HALF on stay.

    The partner is loaded a second time, from L1: that is cheaper than to move it between lanes.
    """
    d = tl.arange(0, BLOCK)
    inside, turns = d < HEAD_DIM, d < 2 * HALF
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    x = tl.load(source + d, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(source + partner, mask=turns, other=0.0).to(tl.float32)
    if HAS_NORM:
        element: tl.constexpr = source.dtype.element_ty
        inverse_rms = 1 / tl.sqrt(tl.sum(x * x, 0) / HEAD_DIM + eps)
        x = scaled(x, inverse_rms, tl.load(weight + d, mask=inside, other=0.0).to(tl.float32), element, CENTERED)
        y = scaled(y, inverse_rms, tl.load(weight + partner, mask=turns, other=0.0).to(tl.float32), element, CENTERED)
        x, y = x.to(element).to(tl.float32), y.to(element).to(tl.float32)
    angle = tl.where(d < HALF, d, d - HALF)
    c = tl.load(cosine + angle, mask=turns, other=1.0)
    s = tl.load(sine + angle, mask=turns, other=0.0)
    return x * c + tl.where(d < HALF, -y, y) * s


@triton.jit
def qk_norm_rope_cache(
    q, k, v, q_weight, k_weight, eps, cosine, sine, context, q_out, k_cache, v_cache, m, heads, max_context,
    q_stride, q_head_stride, k_stride, v_stride,
    HAS_NORM: tl.constexpr, CENTERED: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one token: first all query heads, then the key heads, each with its value head."""
    head, token, d = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    position = tl.load(context) - m + token  # on the device: a captured graph replays its arguments
    cosine, sine = cosine + position * HALF, sine + position * HALF
    if head < heads:
        source = q + token * q_stride + head * q_head_stride
        turned = normed_and_turned(source, q_weight, eps, cosine, sine, HAS_NORM, CENTERED, HEAD_DIM, HALF, BLOCK)
        tl.store(q_out + (token * heads + head) * HEAD_DIM + d, turned.to(q_out.dtype.element_ty), mask=d < HEAD_DIM)
    else:
        kv_head = head - heads
        source = k + token * k_stride + kv_head * HEAD_DIM
        turned = normed_and_turned(source, k_weight, eps, cosine, sine, HAS_NORM, CENTERED, HEAD_DIM, HALF, BLOCK)
        place = (kv_head.to(tl.int64) * max_context + position) * HEAD_DIM + d
        tl.store(k_cache + place, turned.to(k_cache.dtype.element_ty), mask=d < HEAD_DIM)
        values = tl.load(v + token * v_stride + kv_head * HEAD_DIM + d, mask=d < HEAD_DIM)
        tl.store(v_cache + place, values, mask=d < HEAD_DIM)


def bind_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, centered: bool, out: Tensor, config: Config
) -> Callable[[], None]:
    """out = x / sqrt(mean(x^2) + eps) * weight (centered: * (1 + weight)); x and out [m, width], weight [width]."""
    return _bind_norm(x, None, weight, eps, centered, out, config)


def bind_add_rmsnorm(
    residual: Tensor, delta: Tensor, weight: Tensor, eps: float, centered: bool, out: Tensor, config: Config
) -> Callable[[], None]:
    """residual += delta, rounded, then out = rmsnorm(residual); all [m, width]."""
    return _bind_norm(residual, delta, weight, eps, centered, out, config)


def bind_silu_mul(gate: Tensor, up: Tensor, out: Tensor, config: Config) -> Callable[[], None]:
    """out = silu(gate), rounded, times up; all [m, width], gate and up with a stride between rows."""
    _check(out, gate[0], up[0])
    m, width = out.shape
    return functools.partial(
        silu_mul[(triton.cdiv(width, config.block), m)], gate, up, out, width, gate.stride(0), up.stride(0),
        BLOCK=config.block, num_warps=config.num_warps,
    )  # fmt: skip


def bind_sigmoid_mul(x: Tensor, gate: Tensor, config: Config) -> Callable[[], None]:
    """x *= sigmoid(gate), rounded; both [m, heads, head_dim], gate with strides between tokens and heads."""
    _check(x, gate[0, 0])
    m, heads, head_dim = x.shape
    return functools.partial(
        sigmoid_mul[(heads, m)], x, gate, heads, gate.stride(0), gate.stride(1),
        HEAD_DIM=head_dim, BLOCK=triton.next_power_of_2(head_dim), num_warps=config.num_warps,
    )  # fmt: skip


def bind_qk_norm_rope_cache(
    q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, eps: float, centered: bool,
    cosine: Tensor, sine: Tensor, context: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor, config: Config,
) -> Callable[[], None]:  # fmt: skip
    """Norm (both weights or neither) and rotation of queries and keys; keys and values go into the cache.

    q and q_out [m, heads, head_dim]; k and v [m, kv_heads, head_dim]; weights [head_dim]. cosine and sine are float32
    [max_context, r]: element i of a head turns with element i + r, those from 2 r on stay. context is one int64 on the
    device: rows are its last m positions, which are rows of the angles and places of the caches [kv_heads,
    max_context, head_dim]. q may have strides between tokens and heads, k and v between tokens.
    """
    if (q_weight is None) != (k_weight is None):
        raise ValueError("queries and keys have both a norm or neither")
    _check(q_out, k_cache, v_cache, q[0, 0], k[0], v[0], *(w for w in (q_weight, k_weight) if w is not None))
    (m, heads, head_dim), half = q.shape, cosine.shape[1]
    angles = all(table.dtype == torch.float32 and table.is_contiguous() for table in (cosine, sine))
    if not angles or 2 * half > head_dim or context.dtype != torch.int64:
        raise ValueError(f"angles {cosine.dtype} {tuple(cosine.shape)}, context {context.dtype}: float32 and int64")
    return functools.partial(
        qk_norm_rope_cache[(heads + k.shape[1], m)],
        q, k, v, q_weight, k_weight, eps, cosine, sine, context, q_out, k_cache, v_cache, m, heads, k_cache.shape[1],
        q.stride(0), q.stride(1), k.stride(0), v.stride(0),
        HAS_NORM=q_weight is not None, CENTERED=centered, HEAD_DIM=head_dim, HALF=half,
        BLOCK=triton.next_power_of_2(head_dim), num_warps=config.num_warps,
    )  # fmt: skip


def _bind_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, centered: bool, out: Tensor, config: Config
) -> Callable[[], None]:
    _check(x, weight, out, *(() if delta is None else (delta,)))
    m, width = x.shape
    return functools.partial(
        rmsnorm[(m,)], x, delta, weight, out, eps, width,
        ADD=delta is not None, CENTERED=centered, BLOCK=triton.next_power_of_2(width), num_warps=config.num_warps,
    )  # fmt: skip


def _check(*tensors: Tensor) -> None:
    """A kernel gets addresses: another type or stride would be read and written without a word."""
    for tensor in tensors:
        if tensor.dtype not in DTYPES or tensor.dtype != tensors[0].dtype or not tensor.is_contiguous():
            raise ValueError(
                f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}: the kernel takes contiguous"
                f" {tensors[0].dtype}, one of bf16, fp16 and fp32"
            )
