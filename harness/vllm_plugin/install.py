"""Puts our layers and ops in the place of vLLM's, through the registries that it and torch have for those from
elsewhere."""

import functools
import importlib
from collections.abc import Iterable
from typing import NamedTuple

from harness.errors import UnavailableError
from harness.specs.ab import Op
from harness.vllm_plugin.settings import claim, read_settings

LAYERS = "vllm.model_executor.layers"


class Replacement(NamedTuple):
    """Of vLLM's layers of one operation on one kind of device."""

    module: str
    """Has a `replace_layers`."""
    needed: dict[str, tuple[str, ...]]
    """Names of vLLM that it uses, by module: 0.32's, none of them promised to stay."""


def _of(kind: str, fields: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{kind}.{field}" for field in fields)


_STEP = "query_start_loc", "seq_lens", "block_table"
"""Of a step's metadata: where each request's queries begin, how far its cache is filled, its blocks."""
_GPU_STEP = (*_STEP, "num_actual_tokens", "max_query_len")
_LINEAR = {
    "vllm.config": ("get_current_vllm_config_or_none",),
    "vllm.utils.torch_utils": ("direct_register_custom_op",),
    "vllm.v1.attention.backends.registry": ("AttentionBackendEnum.CUSTOM",),
    f"{LAYERS}.linear": (
        "UnquantizedLinearMethod.process_weights_after_loading", "UnquantizedLinearMethod.apply",
        "ReplicatedLinear.register_oot", "ColumnParallelLinear.register_oot",
        "MergedColumnParallelLinear.register_oot", "QKVParallelLinear.register_oot",
        "RowParallelLinear.register_oot",
    ),
    f"{LAYERS}.vocab_parallel_embedding": (
        "UnquantizedEmbeddingMethod.process_weights_after_loading", "UnquantizedEmbeddingMethod.apply",
        "ParallelLMHead.register_oot", "VocabParallelEmbedding.register_oot",
    ),
}  # fmt: skip
_ATTENTION = {
    "vllm.config": ("get_current_vllm_config",),
    "vllm.v1.attention.backend": ("AttentionType.DECODER",),
}
ON_CPU: dict[Op, Replacement] = {
    "linear": Replacement("harness.vllm_plugin.layers", _LINEAR | {
        f"{LAYERS}.utils": ("dispatch_cpu_unquantized_gemm",),  # makes layer.cpu_linear
    }),
    "attention": Replacement("harness.vllm_plugin.cpu_attention", _ATTENTION | {
        "vllm.v1.attention.selector": ("_cached_get_attn_backend.cache_clear",),
        "vllm.v1.attention.backends.registry": ("register_backend", "AttentionBackendEnum.CPU_ATTN"),
        "vllm.v1.attention.backends.cpu_attn": (
            "CPUAttentionBackend.get_impl_cls", "CPUAttentionBackendImpl.forward",
            "CPUAttentionBackendImpl.do_kv_cache_update", *_of("CPUAttentionMetadata", _STEP),
        ),
    }),
    "linear-attention": Replacement("harness.vllm_plugin.delta_layers", {
        "vllm.forward_context": ("get_forward_context",),
        "vllm.utils.torch_utils": ("_resolve_layer_name",),
        f"{LAYERS}.mamba.mamba_utils": ("is_conv_state_dim_first",),
        "vllm.v1.attention.backends.gdn_attn": _of("GDNAttentionMetadata", (
            "num_actual_tokens", "num_prefills", "spec_sequence_masks", "num_decodes", "num_decode_tokens",
            "non_spec_state_indices_tensor",
        )),
        f"{LAYERS}.mamba.ops.cpu.gdn_attention": ("cpu_gdn_attention_core", "register_cpu_gdn_attention_ops"),
    }),
}  # fmt: skip
ON_GPU: dict[Op, Replacement] = {
    "linear": Replacement("harness.vllm_plugin.layers", _LINEAR),
    "attention": Replacement("harness.vllm_plugin.gpu_attention", _ATTENTION | {
        "vllm.platforms": ("current_platform.is_cuda",),
        "vllm.v1.attention.backend": (
            "AttentionType.DECODER", "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE",
        ),
        "vllm.v1.attention.backends.registry": ("register_backend", "AttentionBackendEnum.CUSTOM"),
        "vllm.v1.attention.backends.flash_attn": (
            "FlashAttentionBackend.get_impl_cls", "FlashAttentionBackend.get_builder_cls", "FlashAttentionImpl.forward",
            *_of("FlashAttentionMetadata", _GPU_STEP),
        ),
        "vllm.v1.attention.backends.triton_attn": (
            "TritonAttentionBackend.get_impl_cls", "TritonAttentionBackend.get_builder_cls",
            "TritonAttentionImpl.forward", *_of("TritonAttentionMetadata", _GPU_STEP),
        ),
    }),
}  # fmt: skip


def install() -> None:
    """As the environment says. A second call does nothing more: layers ask the environment whenever a model is made."""
    settings = read_settings()
    if settings is not None:
        tables = settings.load()  # a file that is no table stops the start here, before any weights are read
        listed = {entry.op for table in tables for entry in table.entries}
        ops = [op for op in _replacements() if op == "linear" or op in listed]  # linears open the session
        check_names(ops)
        if settings.report is not None:
            claim(settings.report)
        for op in ops:
            _replace_layers(_replacements()[op].module)


def _replacements() -> dict[Op, Replacement]:
    """For the device that this vLLM is for."""
    return ON_CPU if importlib.import_module("vllm.platforms").current_platform.device_type == "cpu" else ON_GPU


def check_names(ops: Iterable[Op]) -> None:
    """UnavailableError names everything that this vLLM lacks."""
    lacking = missing(ops)
    if lacking:
        raise UnavailableError(
            f"this vLLM lacks {', '.join(lacking)}",
            "the plugin was made for vLLM 0.32: select none of such operations, or unset HARNESS_SELECTION",
        )


def missing(ops: Iterable[Op]) -> list[str]:
    """What these operations need and this vLLM does not have."""
    found = _replacements()
    needed = [(module, name) for op in ops for module, names in found[op].needed.items() for name in names]
    return [f"{module}.{name}" for module, name in needed if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return hasattr(found, last) or last in getattr(found, "__dataclass_fields__", {})  # a field may have no default


@functools.cache
def _replace_layers(module: str) -> None:
    importlib.import_module(module).replace_layers()
