"""Puts our layers in the place of vLLM's, through the registry that it has for layers from elsewhere."""

import functools
import importlib

from harness.errors import UnavailableError
from harness.vllm_plugin.settings import read_settings

LAYERS = "vllm.model_executor.layers"
NEEDED = {
    "vllm.config": ("get_current_vllm_config", "get_current_vllm_config_or_none"),
    "vllm.utils.torch_utils": ("direct_register_custom_op",),
    f"{LAYERS}.utils": ("dispatch_cpu_unquantized_gemm",),  # makes layer.cpu_linear
    f"{LAYERS}.linear": (
        "UnquantizedLinearMethod.process_weights_after_loading", "UnquantizedLinearMethod.apply",
        "ReplicatedLinear.register_oot", "ColumnParallelLinear.register_oot", "MergedColumnParallelLinear.register_oot",
        "QKVParallelLinear.register_oot", "RowParallelLinear.register_oot",
    ),
    f"{LAYERS}.vocab_parallel_embedding": (
        "UnquantizedEmbeddingMethod.process_weights_after_loading", "UnquantizedEmbeddingMethod.apply",
        "ParallelLMHead.register_oot", "VocabParallelEmbedding.register_oot",
    ),
    "vllm.v1.attention.backend": ("AttentionType.DECODER",),
    "vllm.v1.attention.backends.registry": ("register_backend", "AttentionBackendEnum.CPU_ATTN"),
    "vllm.v1.attention.backends.cpu_attn": (
        "CPUAttentionBackend.get_impl_cls", "CPUAttentionBackendImpl.forward",
        "CPUAttentionBackendImpl.do_kv_cache_update",
    ),
}  # fmt: skip
"""What the plugin uses of vLLM, by module: 0.32's names, none of them promised to stay."""


def install() -> None:
    """As the environment says. A second call does nothing more: layers ask the environment whenever a model is made."""
    settings = read_settings()
    if settings is not None:
        check_names()
        settings.load()  # a file that is no table stops the start here, before any weights are read
        _replace_layers()


def check_names() -> None:
    """UnavailableError names everything that this vLLM lacks."""
    missing = [f"{module}.{name}" for module, names in NEEDED.items() for name in names if not _has(module, name)]
    if missing:
        raise UnavailableError(
            f"this vLLM lacks {', '.join(missing)}", "the plugin was made for vLLM 0.32; unset HARNESS_SELECTION"
        )


def _has(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


@functools.cache
def _replace_layers() -> None:
    from harness.vllm_plugin.cpu_attention import replace_attention
    from harness.vllm_plugin.layers import replace_layers

    replace_layers()
    replace_attention()
