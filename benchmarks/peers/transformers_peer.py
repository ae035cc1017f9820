"""Hugging Face's eager model with its dynamic cache, as `generate` runs it by default."""

import time
from collections.abc import Callable

import torch
from prompt import prompt_ids
from transformers import AutoConfig, AutoModelForCausalLM


def open_peer(folder: str, tokens: int) -> Callable[[], float]:
    network = _random_network(AutoConfig.from_pretrained(folder))

    @torch.inference_mode()
    def block() -> float:
        past = network(torch.tensor([prompt_ids()]), use_cache=True)
        token, cache = past.logits[:, -1:].argmax(-1), past.past_key_values
        started = time.perf_counter()
        for _ in range(tokens):
            out = network(token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        return (time.perf_counter() - started) / tokens

    return block


def _random_network(config: AutoConfig) -> torch.nn.Module:
    """Made on `meta` and filled: initializing the modules one by one takes minutes."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network = network.to_empty(device="cpu").eval()
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.02)
    network.tie_weights()
    for name, buffer in network.named_buffers():
        if "inv_freq" in name:  # rotary frequencies must be real numbers, whatever they are
            buffer.data.copy_(1.0 / (1e6 ** (torch.arange(buffer.numel()) / buffer.numel())))
    return network
