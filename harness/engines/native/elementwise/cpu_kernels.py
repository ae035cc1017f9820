"""Between products and attention by our C++ kernels."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from harness.backends.base import Executor, Launch
from harness.backends.launch import KERNEL_DTYPES, bind_kernel
from harness.backends.weights import dtype_name
from harness.engines.native.elementwise.base import Norm, head_norms
from harness.kernel_build import kernel_source, load_kernel


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
        weights = [norm.weight for norm in (q_norm, k_norm) if norm is not None]
        _check(q_out, k_cache, v_cache, q[0, 0], k[0], v[0], *weights)
        _check(cosine, sine)
        (m, heads, head_dim), kv_heads = q.shape, k.shape[1]
        sizes = (m, heads, kv_heads, head_dim, 2 * cosine.shape[1], k_cache.shape[1])
        return self._bind(
            "qk_norm_rope_cache", q, q, k, v, *head_norms(q_norm, k_norm), cosine, sine, context, q_out, k_cache,
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
