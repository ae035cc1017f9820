"""Attention layers: projections, rotation into the cache, attention, and a gate where the family has one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.engines.native.memory import empty
from harness.engines.native.ops import Bound
from harness.engines.native.rope import rope_table
from harness.engines.native.weights import TensorSource
from harness.engines.native.workspace import Products, Rows, Workspace
from harness.specs.parts.attention import Attention

Angles = tuple[torch.Tensor, torch.Tensor]


class AttentionKind:
    """All layers of one kind: their caches as one allocation, and the angles they turn by."""

    def __init__(self, spec: Attention, num_layers: int, workspace: Workspace) -> None:
        self._spec, self._workspace = spec, workspace
        shape = (num_layers, workspace.batch, 2, spec.num_kv_heads, workspace.max_context, spec.head_dim)
        # Zeroed: a masked attention multiplies unfilled places by 0, and 0 x NaN is NaN; and every page is touched.
        self._caches = iter(empty(shape, workspace.dtype, workspace.device).zero_())
        self._angles = rope_table(workspace.spec, spec.head_dim, workspace.max_context, workspace.device)

    def layer(self, index: int, source: TensorSource, at: str) -> AttentionLayer:
        """The next layer of this kind; `at`: what its tensors' names begin with."""
        return AttentionLayer(self._spec, self._workspace, index, source, at, next(self._caches), self._angles)


class AttentionLayer:
    """One layer. Its cache is [batch, 2, num_kv_heads, max_context, head_dim]."""

    def __init__(
        self, spec: Attention, workspace: Workspace, index: int, source: TensorSource, at: str, cache: torch.Tensor,
        angles: Angles,
    ) -> None:  # fmt: skip
        self._spec, self._workspace, self._index = spec, workspace, index
        self._cache, self._angles = cache, angles
        self._filled: set[int] = set()
        modules = {role: f"{at}self_attn.{role}_proj" for role in "qkv"}
        self._qkv = Products.load(source, workspace.fuse, modules)
        self._o = Products.load(source, False, {"o": f"{at}self_attn.o_proj"})
        norms = (workspace.norm(source, f"{at}self_attn.{role}_norm.weight") if spec.qk_norm else None for role in "qk")
        self._q_norm, self._k_norm = norms

    def reset(self, request: int) -> None:
        """Nothing: places behind the context are not read."""

    def fill(self, request: int) -> None:
        """Random keys and values in all places, once: what real requests leave there later is as good."""
        if request not in self._filled:
            self._cache[request].normal_()
            self._filled.add(request)

    def launches(self, rows: Rows, x: torch.Tensor, out: torch.Tensor) -> Iterator[Bound]:
        """x and out are [rows, hidden]."""
        s, w = self._spec, self._workspace
        q_width = s.q_size * (2 if s.output_gate else 1)
        qkv = w.activation("qkv", q_width + 2 * s.kv_size, rows)
        yield from self._qkv.bind(w.ops, rows.phase, self._index, x, qkv)
        queries, keys, values = torch.split(qkv, [q_width, s.kv_size, s.kv_size], dim=1)
        q = queries.view(rows.num, s.num_heads, -1)
        k, v = (part.view(rows.num, s.num_kv_heads, s.head_dim) for part in (keys, values))
        rotated, attended = (
            w.activation(name, s.q_size, rows).view(rows.num, s.num_heads, s.head_dim) for name in ("q", "attended")
        )
        for lane, request in rows.lanes:
            k_cache, v_cache = self._cache[request]
            rope = w.elementwise.qk_norm_rope_cache(
                q[lane, :, : s.head_dim], k[lane], v[lane], self._q_norm, self._k_norm, *self._angles, w.context,
                rotated[lane], k_cache, v_cache,
            )  # fmt: skip
            yield Bound("elementwise", "qk_norm_rope_cache", rope)
            yield w.ops.attention(
                rows.phase, self._index, rotated[lane], k_cache, v_cache, w.context, attended[lane], len(rows.lanes)
            )
        if s.output_gate:
            gate = w.elementwise.sigmoid_mul(attended, q[:, :, s.head_dim :])
            yield Bound("elementwise", "attention_gate", gate)
        yield from self._o.bind(w.ops, rows.phase, self._index, attended.view(rows.num, -1), out)
