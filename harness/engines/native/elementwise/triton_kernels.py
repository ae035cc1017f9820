"""Between products and attention by our Triton kernels, each fused into one launch."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from harness.backends.base import Launch
from harness.engines.native.elementwise.base import Norm, head_norms
from harness.engines.native.elementwise.torch_ops import TorchElementwise
from harness.triton_kernels import load_triton


class TritonElementwise(TorchElementwise):
    """Our Triton kernels (kernels/elementwise), on whatever card Triton knows.

    The counter, the look-up in the embedding and the argmax stay torch's: each is one launch there as well.
    """

    name: ClassVar[str] = "triton"

    def __init__(self) -> None:
        self._kernels = load_triton("elementwise")

    def rmsnorm(self, x: Tensor, norm: Norm, out: Tensor) -> Launch:
        config = self._whole_row(x.shape[1])
        launch: Launch = self._kernels.bind_rmsnorm(x, norm.weight, norm.eps, norm.centered, out, config)
        return launch

    def add_rmsnorm(self, residual: Tensor, delta: Tensor, norm: Norm, out: Tensor) -> Launch:
        config, weight = self._whole_row(residual.shape[1]), (norm.weight, norm.eps, norm.centered)
        launch: Launch = self._kernels.bind_add_rmsnorm(residual, delta, *weight, out, config)
        return launch

    def qk_norm_rope_cache(
        self, q: Tensor, k: Tensor, v: Tensor, q_norm: Norm | None, k_norm: Norm | None, cosine: Tensor, sine: Tensor,
        context: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor,
    ) -> Launch:  # fmt: skip
        q_weight, k_weight, eps, centered = head_norms(q_norm, k_norm)
        launch: Launch = self._kernels.bind_qk_norm_rope_cache(
            q, k, v, q_weight, k_weight, eps, bool(centered), cosine, sine, context, q_out, k_cache, v_cache,
            self._whole_row(q.shape[2]),
        )  # fmt: skip
        return launch

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> Launch:
        # Its smallest programs: nothing is summed over the row, and one row has to occupy a whole card.
        launch: Launch = self._kernels.bind_silu_mul(gate, up, out, self._kernels.CONFIGS[0])
        return launch

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Launch:
        launch: Launch = self._kernels.bind_sigmoid_mul(x, gate, self._whole_row(x.shape[2]))
        return launch

    def _whole_row(self, width: int) -> Any:
        """The fewest warps that hold a row as two loads of 128 bits a lane, one where a wave has 64 lanes."""
        configs = self._kernels.CONFIGS
        return next((config for config in configs if 2 * config.block >= width), configs[-1])
