"""vLLM's attention on a CPU, with ours in its place in layers whose heads a table lists."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend

from harness.vllm_plugin.attention_problem import check_causal, decode_problem, is_plain, prompt_problem
from harness.vllm_plugin.attentions import AttentionLayer, step_requests
from harness.vllm_plugin.layers import model_session


def replace_layers() -> None:
    """A CPU always takes CPU_ATTN, so this is where ours has to be."""
    register_backend(AttentionBackendEnum.CPU_ATTN)(SelectedAttentionBackend)
    _cached_get_attn_backend.cache_clear()  # of an earlier model in this process


class SelectedAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's own but for who attends."""

    @staticmethod
    def get_impl_cls() -> type[SelectedAttention]:
        return SelectedAttention


class SelectedAttention(CPUAttentionBackendImpl):  # type: ignore[misc]
    """One layer's."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._session, self._problems = model_session(), (decode_problem(self), prompt_problem(self))
        self._is_listed = (
            self._session is not None and is_plain(self) and self._session.paths.lists("attention", self._problems[0])
        )
        self._layer: AttentionLayer | None = None

    def forward(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, attn_metadata: Any,
        output: Tensor, output_scale: Tensor | None = None, output_block_scale: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """query and output [rows, num_heads, head_dim]"""
        ours = self._known(layer)
        if ours is not None and attn_metadata is not None and self._session is not None:
            attentions, requests = self._session.attentions, step_requests(attn_metadata)
            if attentions.is_ours(ours) and output_scale is None and output_block_scale is None:
                check_causal(attn_metadata)
                attentions.attend(ours, requests, query, kv_cache, output)
                return output
            attentions.count(ours, requests)
        attended: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
        )
        return attended

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:  # fmt: skip
        """key and value [rows, num_kv_heads, head_dim]"""
        ours = self._known(layer)
        if ours is not None and self._session is not None and self._session.attentions.is_ours(ours):
            self._session.attentions.write(ours, key, value, kv_cache, slot_mapping)
        else:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    def _known(self, layer: Any) -> AttentionLayer | None:
        """Only vLLM's calls tell the layer's name: the first is made when it measures its memory."""
        if self._is_listed and self._layer is None and self._session is not None:
            self._layer = self._session.attentions.add(layer.layer_name, *self._problems)
        return self._layer
