"""Between products and attention by torch's operations."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from harness.backends.base import Launch
from harness.engines.native.elementwise.base import Norm


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
