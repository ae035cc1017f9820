"""vLLM's op for the gated delta rule on a CPU, with our decode steps in it.

vLLM's layers call one op between their projections and the gated norm: convolution and rule, on the state of each
request. Ours is registered over it in torch's dispatcher, so layers, graphs and compiled code stay vLLM's own; what is
not a listed decode step goes on to vLLM's own function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import (
    cpu_gdn_attention_core,
    register_cpu_gdn_attention_ops,
)
from vllm.utils.torch_utils import _resolve_layer_name

from harness.backends.base import DeltaWeights
from harness.backends.weights import dtype_name
from harness.errors import UnavailableError
from harness.specs.problem import DeltaProblem
from harness.vllm_plugin import op
from harness.vllm_plugin.delta import Delta, Tokens
from harness.vllm_plugin.session import Session

ATTRIBUTES = (
    "prefix", "conv1d", "A_log", "dt_bias", "tp_size", "num_k_heads", "num_v_heads", "head_k_dim",
    "head_v_dim", "conv_kernel_size", "activation", "num_spec", "layer_norm_epsilon", "get_state_dtype",
)  # fmt: skip
"""What is used of a layer, beside the cache that it gets when it is loaded."""
_library = Library("vllm", "IMPL")  # type: ignore[no-untyped-call]


def replace_layers() -> None:
    """From now on the op is ours; it does as vLLM's where no session is open."""
    register_cpu_gdn_attention_ops()
    _library.impl("cpu_gdn_attention_core", _core, "CPU")  # type: ignore[no-untyped-call]


def _core(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: Any) -> None:
    """As vLLM's: mixed_qkv [tokens, conv_channels], b and a [tokens, num_value_heads], core_attn_out [tokens,
    num_value_heads, value_head_dim]."""

    def stock() -> None:
        cpu_gdn_attention_core(mixed_qkv, b, a, core_attn_out, layer_name)

    context, session = get_forward_context(), op.current()
    layer = context.no_compile_layers[_resolve_layer_name(layer_name)]
    delta = None if session is None else _known(session, layer)
    metadata = context.attn_metadata[layer.prefix] if isinstance(context.attn_metadata, dict) else None
    if session is None or delta is None or metadata is None or metadata.num_actual_tokens == 0:
        stock()  # nothing is listed, or vLLM only measures how much memory a step takes
    else:
        session.deltas.run(delta, _tokens(layer, metadata, mixed_qkv, b, a, core_attn_out), stock)


def _known(session: Session, layer: Any) -> Delta | None:
    """Of a layer that a table lists; added at its first call, when weights are loaded and no request has come yet."""
    delta = session.deltas.find(layer.prefix)
    if delta is None:
        missing = [name for name in ATTRIBUTES if not hasattr(layer, name)]
        if missing:
            raise UnavailableError(
                f"vLLM's {type(layer).__name__} lacks {', '.join(missing)}",
                "the plugin was made for vLLM 0.32; select no linear-attention",
            )
        if session.paths.lists("linear-attention", _problem(layer)):
            delta = _delta(layer)
            session.deltas.add(delta)
    return delta


def _problem(layer: Any) -> DeltaProblem:
    """A worker's share of the heads."""
    return DeltaProblem(
        m=1, num_key_heads=layer.num_k_heads // layer.tp_size, num_value_heads=layer.num_v_heads // layer.tp_size,
        key_head_dim=layer.head_k_dim, value_head_dim=layer.head_v_dim, conv_kernel=layer.conv_kernel_size,
        dtype=dtype_name(layer.conv1d.weight),
    )  # fmt: skip


def _delta(layer: Any) -> Delta:
    unpacked = getattr(layer.conv1d, "_cpu_unpacked_conv_weight", None)  # where vLLM packs, it keeps what was loaded
    conv = layer.conv1d.weight if unpacked is None else unpacked
    a_log, dt_bias = (tensor.detach().float() for tensor in (layer.A_log, layer.dt_bias))
    copies = [new for new, old in ((a_log, layer.A_log), (dt_bias, layer.dt_bias)) if new.dtype != old.dtype]
    return Delta(
        name=layer.prefix, problem=_problem(layer),
        weights=DeltaWeights(conv.detach().flatten(1), a_log, dt_bias, norm=None, eps=layer.layer_norm_epsilon),
        packed_by_vllm=unpacked is not None, unfit=_unfit(layer), kept_bytes=sum(copy.nbytes for copy in copies),
    )  # fmt: skip


def _unfit(layer: Any) -> str | None:
    dtypes = layer.get_state_dtype()
    if dtypes != (layer.conv1d.weight.dtype, torch.float32):
        kept = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"vLLM keeps the states in {kept} (set mamba_ssm_cache_dtype to float32)"
    if is_conv_state_dim_first():
        return "the convolution's state has channels first (unset VLLM_SSM_CONV_STATE_LAYOUT)"
    if layer.num_spec:
        return "vLLM keeps a state for every token that it speculates on"
    return None if layer.activation == "silu" else f"the convolution's activation is {layer.activation}"


def _tokens(layer: Any, metadata: Any, qkv: Tensor, b: Tensor, a: Tensor, out: Tensor) -> Tokens | None:
    """None where a prompt, or speculation, is in the step: all of it is then vLLM's."""
    m = metadata
    if m.num_prefills or m.spec_sequence_masks is not None or m.num_decodes != m.num_decode_tokens:
        return None
    conv, recurrent = layer.kv_cache[0], layer.kv_cache[1]
    num_slots, heads, value_dim, key_dim = recurrent.shape  # a GPU's order: on a CPU vLLM itself has keys first
    slots = m.non_spec_state_indices_tensor[: m.num_decodes].tolist()
    return Tokens(qkv, b, a, out, slots, conv, recurrent.view(num_slots, heads, key_dim, value_dim))
