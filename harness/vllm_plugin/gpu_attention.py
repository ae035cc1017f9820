"""vLLM's attention on a GPU under the name CUSTOM: its own, but for decode steps whose heads a table lists."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from harness.backends.base import BlockCache
from harness.vllm_plugin.attention_problem import decode_problem, is_plain
from harness.vllm_plugin.decodes import DecodeLayer, rows_of_cache
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


def replace_layers() -> None:
    """CUSTOM is there for backends from elsewhere; `--attention-backend CUSTOM` takes it."""
    register_backend(AttentionBackendEnum.CUSTOM)(SelectedAttentionBackend)


class SelectedAttentionBackend(Stock):  # type: ignore[misc]
    """vLLM's own but for who attends to one query a request."""

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[SelectedAttention]:
        return SelectedAttention


class SelectedAttention(StockImpl):  # type: ignore[misc]
    """One layer's."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._session, self._problem = model_session(), decode_problem(self)
        self._is_listed = self._session is not None and is_plain(self) and self._session.decodes.lists(self._problem)
        self._layer: DecodeLayer | None = None

    def forward(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, attn_metadata: Any,
        output: Tensor, *scales: Any, **named_scales: Any,
    ) -> Tensor:  # fmt: skip
        """query and output [rows, num_heads, head_dim]; rows behind num_actual_tokens are padding."""
        ours, rows = self._known(layer), getattr(attn_metadata, "num_actual_tokens", 0)
        if ours is not None and self._session is not None and rows and attn_metadata.max_query_len == 1:
            keys, values = rows_of_cache(kv_cache, self.head_size, CACHE_AXIS)
            cache = BlockCache(keys, values, attn_metadata.block_table[:rows])
            contexts = attn_metadata.seq_lens[:rows]
            if self._session.decodes.attend(ours, query[:rows].contiguous(), cache, contexts, output[:rows]):
                return output
        attended: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named_scales
        )
        return attended

    def _known(self, layer: Any) -> DecodeLayer | None:
        """Only vLLM's calls tell the layer's name: the first is made when it measures its memory."""
        if self._is_listed and self._layer is None and self._session is not None:
            self._layer = self._session.decodes.add(layer.layer_name, self._problem)
        return self._layer
