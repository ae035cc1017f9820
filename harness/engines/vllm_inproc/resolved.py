"""What vLLM settled on, by its own names: read from its configuration and model, never from what was asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import vllm

Resolved = dict[str, str | int | float | bool | None]


def resolved_settings(config: Any) -> Resolved:
    """config: vLLM's VllmConfig after the engine has started."""
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    parallel, compilation = config.parallel_config, config.compilation_config
    return {
        "version": vllm.__version__,
        "device": config.device_config.device_type,
        "architecture": model.architecture,
        "dtype": _plain(model.dtype),
        "quantization": model.quantization,
        "load_format": _plain(config.load_config.load_format),
        "max_model_len": model.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": scheduler.async_scheduling,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "block_size": cache.block_size,
        "num_blocks": cache.num_gpu_blocks,
        "cache_dtype": _plain(cache.cache_dtype),
        "mamba_ssm_cache_dtype": _plain(cache.mamba_ssm_cache_dtype) if model.is_hybrid else None,
        "executor": _plain(parallel.distributed_executor_backend),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "compilation_mode": compilation.mode.name,
        "compilation_backend": compilation.backend if compilation.mode else None,
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "seed": model.seed,
    }


def resolved_layers(layers: dict[str, Any], model: Any) -> Resolved:
    """Attention backends of the layers that have a cache, and the methods of the linear ones, with their numbers.

    layers: of the compilation configuration's static_forward_context; model: the loaded torch module.
    """
    attention = Counter(layer.get_attn_backend().get_name() for layer in layers.values())
    linear = Counter(
        type(module.quant_method).__name__
        for module in model.modules()
        if getattr(module, "quant_method", None) is not None and hasattr(module, "weight")
    )
    return {"attention_backends": _counted(attention), "linear_methods": _counted(linear)}


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{name} x{number}" for name, number in sorted(names.items()))


def _plain(value: object) -> str:
    """torch.bfloat16 -> bfloat16; an executor that is a class by its name."""
    return value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
