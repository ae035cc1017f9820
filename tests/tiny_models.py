"""Tiny checkpoints of every family, made by transformers from a seed: what the native engine must equal."""

from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MOE: dict[str, Any] = {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
HYBRID: dict[str, Any] = {
    "model_type": "qwen3_5_text", "head_dim": 32, "num_hidden_layers": 5, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-biased-tied": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama-3.1-rope": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE},
    "llama-no-gqa": {"model_type": "llama", "num_key_value_heads": 4},
    "mistral": {"model_type": "mistral", "head_dim": 32, "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3-tied": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "qwen3-moe": {"model_type": "qwen3_moe", **MOE, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "qwen3-moe-not-normalized": {"model_type": "qwen3_moe", **MOE, "norm_topk_prob": False},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3.5": HYBRID,
    "qwen3.5-tied-one-group": HYBRID | {"tie_word_embeddings": True, "linear_num_key_heads": 4},
}


def save_tiny(case: str, folder: Path, dtype: str = "float32", **changes: Any) -> Path:
    """A random checkpoint of the case; biases and norms random too, since zeros and ones hide faults."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = BASE | CASES[case] | changes
    config = AutoConfig.for_model(**values)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centered = "qwen3_5" in values["model_type"] and "linear_attn.norm" not in name
            center = 1.0 if "norm" in name and not centered else 0.0
            small = "norm" in name or "bias" in name
            parameter.normal_(center, 0.1 if small else max(parameter.shape[-1], 4) ** -0.5)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder
