"""What one of vLLM's attention layers asks, in our words."""

from __future__ import annotations

import math
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType

from harness.errors import UnavailableError
from harness.specs.problem import AttentionProblem
from harness.specs.tensor import CONFIG_DTYPES

NO_WINDOW = (-1, (-1, -1))
"""As CPU_ATTN keeps it, and as the others do."""


def decode_problem(impl: Any) -> AttentionProblem:
    """A decode step's, at the longest context that a request may come to."""
    return AttentionProblem(
        m=1, num_heads=impl.num_heads, num_kv_heads=impl.num_kv_heads, head_dim=impl.head_size,
        max_context=get_current_vllm_config().model_config.max_model_len,
        dtype=CONFIG_DTYPES[_dtype()],
    )  # fmt: skip


def prompt_problem(impl: Any) -> AttentionProblem:
    """The longest prompt chunk's."""
    decode = decode_problem(impl)
    chunk = min(decode.max_context, get_current_vllm_config().scheduler_config.max_num_batched_tokens)
    return decode.model_copy(update={"m": max(chunk, 2)})


def is_plain(impl: Any) -> bool:
    """Causal attention over all of a request's own cache in the model's type, and nothing else: what our backends
    do."""
    return (
        impl.attn_type == AttentionType.DECODER
        and impl.alibi_slopes is None
        and impl.sliding_window in NO_WINDOW
        and not impl.logits_soft_cap
        and impl.sinks is None
        and impl.kv_sharing_target_layer_name is None
        and impl.kv_cache_dtype in ("auto", _dtype())
        and not _shares_contexts()
        and not _looks_ahead()
        and math.isclose(impl.scale, impl.head_size**-0.5, rel_tol=1e-6)
    )


def check_causal(metadata: Any) -> None:
    """UnavailableError for a step in which a query sees what follows it: our layout of the cache is none that vLLM's
    own path could go on with."""
    if getattr(metadata, "causal", True) is not True:
        raise UnavailableError(
            "a step of vLLM's is not causal, and our attention is", "give a table without `harness ab attention`"
        )


def _looks_ahead() -> bool:
    """Queries see what follows them, in an image or everywhere."""
    config = get_current_vllm_config()
    return bool(
        getattr(config.model_config, "is_mm_prefix_lm", False)
        or getattr(getattr(config, "attention_config", None), "use_non_causal", False)
    )


def _shares_contexts() -> bool:
    """Workers have a part of each request's places, or windows that only vLLM's own backends know."""
    config = get_current_vllm_config()
    parts = (
        getattr(config.parallel_config, f"{phase}_context_parallel_size", 1) for phase in ("decode", "prefill")
    )  # fmt: skip
    return max(parts) > 1 or getattr(config.model_config, "rswa_window", None) is not None


def _dtype() -> str:
    """The model's, while vLLM makes its layers."""
    return str(torch.get_default_dtype()).removeprefix("torch.")
