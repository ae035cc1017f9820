"""vLLM's attention on a GPU under the name CUSTOM: its own, but for steps of heads that a table lists."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from harness.backends.base import BlockCache
from harness.vllm_plugin.attention_problem import decode_problem, is_plain, prompt_problem
from harness.vllm_plugin.attentions import Request, step_requests
from harness.vllm_plugin.gpu_attentions import GpuLayer, rows_of_cache
from harness.vllm_plugin.layers import model_session

if current_platform.is_cuda():
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend as Stock
    from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl as StockImpl

    CACHE_AXIS = 0
else:  # AMD's cards and Hygon's
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend as Stock
    from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl as StockImpl

    CACHE_AXIS = 1
"""Where 0.18 has keys and values apart."""
NAME: str = AttentionBackendEnum.CUSTOM.name
BUILDER: Any = Stock.get_builder_cls()


def replace_layers() -> None:
    """CUSTOM is there for backends from elsewhere; `--attention-backend CUSTOM` takes it."""
    register_backend(AttentionBackendEnum.CUSTOM)(SelectedAttentionBackend)


class SelectedAttentionBackend(Stock):  # type: ignore[misc]
    """vLLM's own but for who attends."""

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[SelectedAttention]:
        return SelectedAttention

    @staticmethod
    def get_builder_cls() -> type[SelectedBuilder]:
        return SelectedBuilder


class SelectedBuilder(BUILDER):  # type: ignore[misc]
    """Graphs hold decode steps alone: of others the host has to know the lengths."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


class SelectedAttention(StockImpl):  # type: ignore[misc]
    """One layer's."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._session, self._problems = model_session(), (decode_problem(self), prompt_problem(self))
        self._is_listed = (
            self._session is not None and is_plain(self) and self._session.paths.lists("attention", self._problems[0])
        )
        self._layer: GpuLayer | None = None

    def forward(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, attn_metadata: Any,
        output: Tensor, *scales: Any, **named_scales: Any,
    ) -> Tensor:  # fmt: skip
        """query and output [rows, num_heads, head_dim]; rows behind num_actual_tokens are padding."""
        ours = self._known(layer)
        is_plain_output = all(scale is None for scale in (*scales, *named_scales.values()))  # not quantized within
        can_attend = ours is not None and attn_metadata is not None and is_plain_output
        if (
            can_attend
            and getattr(attn_metadata, "causal", True) is True
            and self._attends(ours, query, kv_cache, attn_metadata, output)
        ):
            return output
        attended: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named_scales
        )
        return attended

    def _attends(self, ours: GpuLayer | None, query: Tensor, kv_cache: Tensor, metadata: Any, output: Tensor) -> bool:
        """False: vLLM's own shall."""
        if ours is None or self._session is None or metadata.num_actual_tokens == 0:
            return False
        q, out = query[: metadata.num_actual_tokens].contiguous(), output[: metadata.num_actual_tokens]
        cache = BlockCache(*rows_of_cache(kv_cache, self.head_size, CACHE_AXIS), metadata.block_table)
        if metadata.max_query_len > 1:
            requests = partial(_requests, metadata)
            return self._session.gpu_attentions.prompts(ours, requests, q, cache, metadata.seq_lens, out)
        of_rows = BlockCache(cache.keys, cache.values, cache.table[: len(q)])
        return self._session.gpu_attentions.decode(ours, q, of_rows, metadata.seq_lens[: len(q)], out)

    def _known(self, layer: Any) -> GpuLayer | None:
        """Only vLLM's calls tell the layer's name: the first is made when it measures its memory."""
        if self._is_listed and self._layer is None and self._session is not None:
            self._layer = self._session.gpu_attentions.add(layer.layer_name, *self._problems)
        return self._layer


def _requests(metadata: Any) -> list[Request]:
    """Those of a step, kept on its metadata: the card is asked by the first layer alone."""
    if not hasattr(metadata, "harness_requests"):
        metadata.harness_requests = step_requests(metadata)
    found: list[Request] = metadata.harness_requests
    return found
