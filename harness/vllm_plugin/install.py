"""Puts our layers and ops in the place of vLLM's, through the registries that it and torch have for those from
elsewhere."""

import functools
import importlib
from collections.abc import Iterable

from harness.errors import UnavailableError
from harness.specs.ab import Op
from harness.vllm_plugin.settings import read_settings

LAYERS = "vllm.model_executor.layers"
NEEDED: dict[Op, dict[str, tuple[str, ...]]] = {
    "linear": {
        "vllm.config": ("get_current_vllm_config_or_none",),
        "vllm.utils.torch_utils": ("direct_register_custom_op",),
        f"{LAYERS}.utils": ("dispatch_cpu_unquantized_gemm",),  # makes layer.cpu_linear
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
    },
    "attention": {
        "vllm.config": ("get_current_vllm_config",),
        "vllm.v1.attention.backend": ("AttentionType.DECODER",),
        "vllm.v1.attention.selector": ("_cached_get_attn_backend.cache_clear",),
        "vllm.v1.attention.backends.registry": ("register_backend", "AttentionBackendEnum.CPU_ATTN"),
        "vllm.v1.attention.backends.cpu_attn": (
            "CPUAttentionBackend.get_impl_cls", "CPUAttentionBackendImpl.forward",
            "CPUAttentionBackendImpl.do_kv_cache_update",
        ),
    },
    "linear-attention": {
        "vllm.forward_context": ("get_forward_context",),
        "vllm.utils.torch_utils": ("_resolve_layer_name",),
        f"{LAYERS}.mamba.mamba_utils": ("is_conv_state_dim_first",),
        f"{LAYERS}.mamba.ops.cpu.gdn_attention": ("cpu_gdn_attention_core", "register_cpu_gdn_attention_ops"),
    },
}  # fmt: skip
"""What the plugin uses of vLLM, by operation and module: 0.32's names, none of them promised to stay."""
REPLACING: dict[Op, str] = {
    "linear": "harness.vllm_plugin.layers", "attention": "harness.vllm_plugin.cpu_attention",
    "linear-attention": "harness.vllm_plugin.delta_layers",
}  # fmt: skip
"""Modules with a `replace_layers`."""


def install() -> None:
    """As the environment says. A second call does nothing more: layers ask the environment whenever a model is made."""
    settings = read_settings()
    if settings is not None:
        tables = settings.load()  # a file that is no table stops the start here, before any weights are read
        listed = {entry.op for table in tables for entry in table.entries}
        ops = [op for op in REPLACING if op == "linear" or op in listed]  # linears open the session
        check_names(ops)
        for op in ops:
            _replace_layers(op)


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
    needed = [(module, name) for op in ops for module, names in NEEDED[op].items() for name in names]
    return [f"{module}.{name}" for module, name in needed if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


@functools.cache
def _replace_layers(op: Op) -> None:
    importlib.import_module(REPLACING[op]).replace_layers()
