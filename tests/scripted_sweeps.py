"""Sweeps of the scripted engine, whose truth is known. Used by test_split, test_sweeps and test_prefill."""

import json
from pathlib import Path
from typing import Any

from harness.bench import run_bench, run_facts
from harness.facts import RunFacts
from harness.records import load_events
from harness.specs.event import Event
from harness.specs.run import RunConfig
from harness.specs.sweep_report import SweepReport

ALTERNATING = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8, "head_dim": 128,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32_000, "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu",
    "dtype": "bfloat16", "sliding_window": 1000, "layer_types": ["sliding_attention", "full_attention"] * 4,
}  # fmt: skip
"""Every other layer sees the last 1,000 positions alone."""
NO_CACHE = {
    "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32_000, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32_768, "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16",
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention"] * 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
"""A small state in every layer, and nothing that grows."""


def written(folder: Path, config: dict[str, Any]) -> str:
    """A config.json's path, as a run's `model`."""
    path = folder / "model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


def swept(
    tmp_path: Path, over: str, values: list[int], model: str = "qwen3-0.6b", every_s: float | None = 2.0,
    workload: dict[str, Any] | None = None, **engine: Any,
) -> tuple[RunFacts, list[Event], SweepReport]:  # fmt: skip
    """A whole sweep: what is known of it, its events, and its report."""
    config = {
        "name": "t", "model": model, "engine": {"kind": "scripted", **engine}, "probe": {"every_s": every_s},
        "workload": {"input_tokens": 8, "output_tokens": 40, "repeats": 3, "warmup_tokens": 1, **(workload or {})},
        "sweep": {"over": over, "values": values},
    }  # fmt: skip
    folder, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    assert record.sweep is not None
    return run_facts(record), load_events(folder), record.sweep
