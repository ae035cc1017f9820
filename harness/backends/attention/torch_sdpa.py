"""torch's scaled dot-product attention, for any number of queries on any device.

The query heads that share a key head stand beside it as one group, so nothing of the cache is copied: with
m = 1 the group's queries are the rows of one attention, with m > 1 the group is a dimension along which the
key head repeats with stride 0. That needs no `enable_gqa`, which torch has since 2.5.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from harness.backends.base import AttentionBackend, Executor, Launch, Support
from harness.backends.registry import attention_backend
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem
from harness.specs.tensor import dtype_bytes

DTYPES = ("F32", "BF16", "F16")


def cache_bytes(problem: AttentionProblem, num_places: int) -> int:
    """Keys and values of so many places, each read once."""
    return 2 * problem.num_kv_heads * problem.head_dim * num_places * dtype_bytes(problem.dtype)


@attention_backend("torch-sdpa")
class TorchSdpa(AttentionBackend):
    """torch.nn.functional.scaled_dot_product_attention; on a GPU with a mask over the whole cache."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        self._on_cpu = executor.device.kind == "cpu"

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        if problem.dtype not in DTYPES:
            return Support.no(f"torch has no attention in {problem.dtype}", f"use one of {', '.join(DTYPES)}")
        if problem.num_heads % problem.num_kv_heads:
            heads = f"{problem.num_heads} heads do not divide among {problem.num_kv_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        return Support.yes()

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        """On a GPU every place of the cache, filled or not: the sizes in a captured graph are fixed."""
        return cache_bytes(problem, context if self._on_cpu else problem.max_context)

    def bind(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        context: Tensor,
        out: Tensor,
        problem: AttentionProblem,
    ) -> Launch:
        bind = bind_filled if self._on_cpu else bind_masked
        return bind(q, k_cache, v_cache, context, out)


def bind_filled(q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor) -> Launch:
    """Over the filled places only: asks the context's value, which a CPU has at hand."""
    m, kv_heads = q.shape[0], k_cache.shape[0]
    queries, result = _by_key_head(q, kv_heads), _by_key_head(out, kv_heads)

    def launch() -> None:
        filled = int(context.item())
        keys, values = (cache[:, None, :filled].expand(-1, queries.shape[1], -1, -1) for cache in (k_cache, v_cache))
        mask = None if m in (1, filled) else _causal(torch.arange(filled - m, filled), filled)
        attended = scaled_dot_product_attention(queries, keys, values, mask, is_causal=m == filled > 1)
        result.copy_(attended)

    return launch


def bind_masked(q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor) -> Launch:
    """Over the whole cache with a mask made from `context` on the device, so that a graph can hold it.

    Unfilled places must be finite: their weight is 0, and 0 x NaN is NaN.
    """
    m, (kv_heads, max_context, _) = q.shape[0], k_cache.shape
    queries, result = _by_key_head(q, kv_heads), _by_key_head(out, kv_heads)
    keys, values = (cache[:, None].expand(-1, queries.shape[1], -1, -1) for cache in (k_cache, v_cache))
    last_queries = torch.arange(-m, 0, device=q.device)

    def launch() -> None:
        mask = _causal(context + last_queries, max_context)
        result.copy_(scaled_dot_product_attention(queries, keys, values, mask))

    return launch


def _by_key_head(heads: Tensor, kv_heads: int) -> Tensor:
    """[m, num_heads, head_dim] as [kv_heads, group, m, head_dim]; m = 1: [kv_heads, 1, group, head_dim]."""
    m, _, head_dim = heads.shape
    grouped = heads.view(m, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    return grouped.transpose(1, 2) if m == 1 else grouped


def _causal(positions: Tensor, num_places: int) -> Tensor:
    """[m, num_places]: a query sees its own position and all before it."""
    return torch.arange(num_places, device=positions.device) <= positions[:, None]
