"""What a step does between products and attention: by torch's operations, or by our C++ kernels.

These are no backends to choose among by what they read: they read little. But they are launched several times
a layer, and a C++ launch costs 0.2 us where a chain of torch operations costs tens. Both store in the tensors'
type, compute in fp32, and round where transformers' Llama and Qwen models round, but for the rotation: it is
rounded once, and its angles not at all, where transformers rounds angles, products and sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from harness.backends.base import Executor, Launch
from harness.backends.launch import KERNEL_DTYPES, bind_kernel, cpu_kernel_support
from harness.backends.weights import dtype_name
from harness.errors import ConfigError, UnavailableError
from harness.kernel_build import kernel_source, load_kernel


@dataclass(frozen=True)
class Norm:
    """RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) times its weight."""

    weight: Tensor
    eps: float
    centered: bool = False
    """The weight is stored as its distance from 1, and nothing is rounded before it (Gemma, Qwen3.5)."""


class Elementwise(Protocol):
    """Each operation is bound to its buffers once; what it returns runs it (`Launch`).

    m is the number of tokens of the step. Tensors are contiguous; q, k, v, gate and up may have a row stride, q and
    the gates of heads a head stride.
    """

    name: ClassVar[str]
    """As `engine.elementwise` and records name it."""

    def advance(self, context: Tensor, m: int) -> Launch:
        """context += m; context is one int64."""

    def embed(self, token_ids: Tensor, table: Tensor, out: Tensor) -> Launch:
        """out[i] = table[token_ids[i]]; token_ids int64 [m], table [vocab, hidden], out [m, hidden]."""

    def rmsnorm(self, x: Tensor, norm: Norm, out: Tensor) -> Launch:
        """out = norm(x); x and out [m, hidden], weight [hidden]."""

    def add_rmsnorm(self, residual: Tensor, delta: Tensor, norm: Norm, out: Tensor) -> Launch:
        """residual += delta, then out = norm(residual)."""

    def qk_norm_rope_cache(
        self, q: Tensor, k: Tensor, v: Tensor, q_norm: Norm | None, k_norm: Norm | None, cosine: Tensor, sine: Tensor,
        context: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor,
    ) -> Launch:  # fmt: skip
        """Norm (both or neither) and rotation of queries and keys; keys and values go into the cache.

        q and q_out [m, heads, head_dim]; k and v [m, kv_heads, head_dim]; norms over head_dim (Qwen3) or None.
        cosine and sine are float32 [max_context, r]: element i of a head turns with element i + r, those from 2 r on
        stay. context, one int64, is read by the launch: the rows are its last m positions, which are rows of the
        angles and places of the caches [kv_heads, max_context, head_dim].
        """

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> Launch:
        """out = silu(gate), rounded, times up; all [m, intermediate]."""

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Launch:
        """x *= sigmoid(gate), rounded; both [m, heads, head_dim]."""

    def argmax(self, logits: Tensor, token: Tensor) -> Launch:
        """Index of the largest of logits [vocab], the first of equals, into token, int64 [1]."""


def choose_elementwise(requested: str, executor: Executor, dtype: str) -> Elementwise:
    """torch, cpu, or for `auto` cpu where its kernels can be built for this type and device.

    Raises ConfigError for another name, UnavailableError where cpu is asked for and can't be had.
    """
    if requested not in ("auto", "torch", "cpu"):
        raise ConfigError(f"engine.elementwise is {requested!r}", "allowed: auto, torch, cpu")
    support = cpu_kernel_support(dtype, executor.device)
    if requested == "torch" or (requested == "auto" and not support.ok):
        return TorchElementwise()
    if not support.ok:
        raise UnavailableError(f"engine.elementwise is cpu, but {support.why}", support.mend)
    return CpuElementwise(executor)


class TorchElementwise:
    """torch's operations, on any device. No value comes to the host, so a graph can hold them."""

    name: ClassVar[str] = "torch"

    def advance(self, context: Tensor, m: int) -> Launch:
        def launch() -> None:
            context.add_(m)

        return launch

    def embed(self, token_ids: Tensor, table: Tensor, out: Tensor) -> Launch:
        def launch() -> None:
            torch.index_select(table, 0, token_ids, out=out)

        return launch

    def rmsnorm(self, x: Tensor, norm: Norm, out: Tensor) -> Launch:
        def launch() -> None:
            out.copy_(_rmsnorm(x, norm))

        return launch

    def add_rmsnorm(self, residual: Tensor, delta: Tensor, norm: Norm, out: Tensor) -> Launch:
        def launch() -> None:
            residual.add_(delta)
            out.copy_(_rmsnorm(residual, norm))

        return launch

    def qk_norm_rope_cache(
        self, q: Tensor, k: Tensor, v: Tensor, q_norm: Norm | None, k_norm: Norm | None, cosine: Tensor, sine: Tensor,
        context: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor,
    ) -> Launch:  # fmt: skip
        last_rows = torch.arange(-q.shape[0], 0, device=q.device)

        def launch() -> None:
            positions = context + last_rows
            angles = cosine[positions, None], sine[positions, None]
            q_out.copy_(_rotate(q if q_norm is None else _rmsnorm(q, q_norm), *angles))
            keys = _rotate(k if k_norm is None else _rmsnorm(k, k_norm), *angles)
            k_cache.index_copy_(1, positions, keys.transpose(0, 1))
            v_cache.index_copy_(1, positions, v.transpose(0, 1))

        return launch

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> Launch:
        def launch() -> None:
            torch.mul(torch.nn.functional.silu(gate), up, out=out)

        return launch

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Launch:
        def launch() -> None:
            x.mul_(gate.sigmoid())

        return launch

    def argmax(self, logits: Tensor, token: Tensor) -> Launch:
        def launch() -> None:
            torch.argmax(logits, dim=0, keepdim=True, out=token)

        return launch


class CpuElementwise:
    """Our C++ kernels (kernels/elementwise). One row runs on the calling thread, more on the pool."""

    name: ClassVar[str] = "cpu"

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._library = load_kernel(kernel_source("elementwise"))

    def advance(self, context: Tensor, m: int) -> Launch:
        return bind_kernel(self._library, "advance_context", (context, m), self._executor)

    def embed(self, token_ids: Tensor, table: Tensor, out: Tensor) -> Launch:
        _check(table, out)
        return self._bind("embed", out, token_ids, table, out, *out.shape)

    def rmsnorm(self, x: Tensor, norm: Norm, out: Tensor) -> Launch:
        _check(x, norm.weight, out)
        return self._bind("rmsnorm", x, x, norm.weight, norm.eps, int(norm.centered), out, *x.shape)

    def add_rmsnorm(self, residual: Tensor, delta: Tensor, norm: Norm, out: Tensor) -> Launch:
        _check(residual, delta, norm.weight, out)
        weight = norm.weight, norm.eps, int(norm.centered)
        return self._bind("add_rmsnorm", residual, residual, delta, *weight, out, *residual.shape)

    def qk_norm_rope_cache(
        self, q: Tensor, k: Tensor, v: Tensor, q_norm: Norm | None, k_norm: Norm | None, cosine: Tensor, sine: Tensor,
        context: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor,
    ) -> Launch:  # fmt: skip
        _check(q_out, k_cache, v_cache, q[0, 0], k[0], v[0])
        _check(cosine, sine)
        (m, heads, head_dim), kv_heads = q.shape, k.shape[1]
        sizes = (m, heads, kv_heads, head_dim, 2 * cosine.shape[1], k_cache.shape[1])
        return self._bind(
            "qk_norm_rope_cache", q, q, k, v, *_head_norms(q, q_norm, k_norm), cosine, sine, context, q_out, k_cache,
            v_cache, *sizes, q.stride(0), q.stride(1), k.stride(0), v.stride(0),
        )  # fmt: skip

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> Launch:
        _check(gate[0], up[0], out)
        return self._bind("silu_mul", gate, gate, up, out, *gate.shape, gate.stride(0), up.stride(0))

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Launch:
        _check(x, gate[0, 0])
        return self._bind("sigmoid_mul", x, x, gate, *x.shape, gate.stride(0), gate.stride(1))

    def argmax(self, logits: Tensor, token: Tensor) -> Launch:
        _check(logits)
        return self._bind("argmax", logits, logits, token, *logits.shape)

    def _bind(self, operation: str, storage: Tensor, *arguments: Tensor | int | float | None) -> Launch:
        """The kernel for the type of `storage`."""
        kernel = f"{operation}_{KERNEL_DTYPES[dtype_name(storage)]}"
        return bind_kernel(self._library, kernel, arguments, self._executor)


def _check(*tensors: Tensor) -> None:
    """A kernel that gets addresses would read and write elsewhere without a word."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype or not tensor.is_contiguous():
            raise ValueError(
                f"{tensor.dtype} {[*tensor.shape]} with strides {tensor.stride()}: "
                f"the kernel takes contiguous {tensors[0].dtype}"
            )


def _head_norms(q: Tensor, q_norm: Norm | None, k_norm: Norm | None) -> tuple[Tensor | None, Tensor | None, float, int]:
    """The norms as the kernel takes them: both weights or none, one eps, one kind."""
    if q_norm is None or k_norm is None:
        return None, None, 0.0, 0
    _check(q[0, 0], q_norm.weight, k_norm.weight)
    return q_norm.weight, k_norm.weight, q_norm.eps, int(q_norm.centered)


def _rmsnorm(x: Tensor, norm: Norm) -> Tensor:
    """Scaled in fp32, rounded to x's type, multiplied by the weight in that type; a centered one is rounded once."""
    values = x.float()
    scaled = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + norm.eps)
    return (scaled * (1 + norm.weight.float())).to(x.dtype) if norm.centered else scaled.to(x.dtype) * norm.weight


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Element i and i + r of each head by the angles [m, 1, r], in fp32, rounded to x's type; from 2 r on they stay."""
    half = cosine.shape[-1]
    low, high, rest = torch.split(x.float(), [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine, rest), dim=-1).to(x.dtype)
