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
}


def save_tiny(case: str, folder: Path, dtype: str = "float32") -> Path:
    """A random checkpoint of the case; biases and norms random too, since zeros and ones hide faults."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = BASE | CASES[case]
    config = AutoConfig.for_model(**values)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name else 0.0
            parameter.normal_(center, 0.1 if "norm" in name or "bias" in name else parameter.shape[-1] ** -0.5)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder
