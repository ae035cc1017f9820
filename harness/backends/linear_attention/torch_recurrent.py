"""The gated delta rule by torch's operations, token by token, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from harness.backends.base import (
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    Executor,
    Launch,
    LinearAttentionBackend,
    Support,
)
from harness.backends.registry import linear_attention_backend
from harness.specs.device import DeviceInfo
from harness.specs.problem import DeltaProblem
from harness.specs.tensor import dtype_bytes

DTYPES = ("F32", "BF16", "F16")
L2_EPS = 1e-6
"""As in flash-linear-attention and transformers, which have it in no configuration."""


def state_and_weight_bytes(problem: DeltaProblem) -> int:
    """Recurrent state in fp32, the convolution's state and weights, each read once; norms and biases are small."""
    conv_values = problem.conv_channels * (2 * problem.conv_kernel - 1)
    return 4 * problem.state_values + conv_values * dtype_bytes(problem.dtype)


@linear_attention_backend("torch-recurrent")
class TorchRecurrent(LinearAttentionBackend):
    """torch's operations in fp32, one token after another; no value comes to the host, so a graph can hold them."""

    contest_legal = True
    norm_is_optional = True

    def __init__(self, executor: Executor) -> None:
        pass

    @staticmethod
    def supports(problem: DeltaProblem, device: DeviceInfo) -> Support:
        if problem.dtype not in DTYPES:
            return Support.no(f"no products in {problem.dtype}", f"use one of {', '.join(DTYPES)}")
        if problem.num_value_heads % problem.num_key_heads:
            heads = f"{problem.num_value_heads} value heads do not divide among {problem.num_key_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        return Support.yes()

    def read_bytes(self, problem: DeltaProblem) -> int:
        return state_and_weight_bytes(problem)

    def bind(
        self, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor, problem: DeltaProblem
    ) -> Launch:
        return bind_around(_token_by_token, inputs, weights, state, out, problem)


Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(q, k, v, log_decay, beta, state) to the output of every token: q and k are [m, key heads, key_head_dim], v and the
output [m, value heads, value_head_dim], all as the convolution leaves them; log_decay and beta are float32
[m, value heads]. A rule makes q and k of unit length, scales q by key_head_dim^-0.5, and changes the state in place."""


def bind_around(
    rule: Rule, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor, problem: DeltaProblem
) -> Launch:
    """By torch's operations what stands around anybody's rule: convolution and gates before it, the norm behind it."""
    shape = (problem.m, problem.num_value_heads, problem.value_head_dim)

    def launch() -> None:
        q, k, v = _heads(_convolved(inputs.qkv, weights.conv, state.conv), problem)
        beta = inputs.b.sigmoid().float()
        log_decay = -weights.a_log.exp() * softplus(inputs.a.float() + weights.dt_bias)
        o = rule(q, k, v, log_decay, beta, state.recurrent)
        if weights.norm is None:
            out.view(shape).copy_(o)
            return
        normed = _rmsnorm(o.to(out.dtype), weights.norm, weights.eps)
        out.view(shape).copy_(normed * silu(inputs.z.float().view(shape)))

    return launch


def _convolved(qkv: Tensor, weight: Tensor, state: Tensor) -> Tensor:
    """silu of each channel's causal convolution, [m, channels]; the last inputs stay in `state`."""
    m, taps = qkv.shape[0], weight.shape[1]
    history = torch.cat((state, qkv))
    state.copy_(history[m:])
    sums = sum(history[tap : tap + m].float() * weight[:, tap].float() for tap in range(taps))
    return silu(torch.as_tensor(sums).to(qkv.dtype))


def _heads(qkv: Tensor, p: DeltaProblem) -> tuple[Tensor, ...]:
    """q, k and v: [m, heads, dim], views of their columns."""
    keys = p.num_key_heads * p.key_head_dim
    parts = torch.split(qkv, [keys, keys, p.num_value_heads * p.value_head_dim], dim=1)
    sizes = (p.key_head_dim, p.key_head_dim, p.value_head_dim)
    return tuple(part.view(p.m, -1, size) for part, size in zip(parts, sizes, strict=True))


def _token_by_token(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """The rule in fp32."""
    group = v.shape[1] // k.shape[1]
    q, k = (_unit(part.float()).repeat_interleave(group, 1) for part in (q, k))
    tokens = zip(q * k.shape[2] ** -0.5, k, v.float(), log_decay.exp(), beta, strict=True)
    return torch.stack([_step(state, *token) for token in tokens])


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """One token of every value head: the new state in place, and [value heads, value_head_dim]."""
    state.mul_(decay[:, None, None])
    recalled = (state * k[:, :, None]).sum(1)
    state.add_(k[:, :, None] * (beta[:, None] * (v - recalled))[:, None])
    return (state * q[:, :, None]).sum(1)


def _rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scaled in fp32, rounded to x's type, multiplied by the weight in that type."""
    values = x.float()
    return (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
