"""What a step does between products and attention: by torch's operations, or by our kernels in C++ or Triton.

These are no backends to choose among by what they read: they read little. But they are launched several times
a layer, and a C++ launch costs 0.2 us where a chain of torch operations costs tens. All store in the tensors'
type, compute in fp32, and round where transformers' Llama and Qwen models round, but for the rotation: it is
rounded once, and its angles not at all, where transformers rounds angles, products and sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from harness.backends.base import Launch


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


def head_norms(q_norm: Norm | None, k_norm: Norm | None) -> tuple[Tensor | None, Tensor | None, float, int]:
    """The norms as kernels take them: both weights or none, one eps, one kind."""
    if q_norm is None or k_norm is None:
        return None, None, 0.0, 0
    return q_norm.weight, k_norm.weight, q_norm.eps, int(q_norm.centered)
