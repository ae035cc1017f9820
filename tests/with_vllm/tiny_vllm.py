"""Tiny models that vLLM runs on a CPU, and its engine on one of them, opened without a run."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tiny_models import BASE, CASES

# On a CPU vLLM knows heads of 32 and more, and a delta rule in bf16 whose heads have 128.
VLLM_CASES: dict[str, dict[str, Any]] = {
    "qwen3": CASES["qwen3"] | {"architectures": ["Qwen3ForCausalLM"]},
    "llama": CASES["llama"] | {"architectures": ["LlamaForCausalLM"], "hidden_size": 128},
    "qwen3.5": CASES["qwen3.5"]
    | {"architectures": ["Qwen3_5ForCausalLM"], "linear_key_head_dim": 128, "linear_value_head_dim": 128},
}
VOCAB = BASE["vocab_size"]


def vllm_config(folder: Path, case: str, **changes: Any) -> Path:
    """A folder with a config.json alone: vLLM draws the weights."""
    path = folder / case
    path.mkdir(parents=True, exist_ok=True)
    values = BASE | VLLM_CASES[case] | {"dtype": "bfloat16"} | changes
    (path / "config.json").write_text(json.dumps(values))
    return path


def run_config(model: Path, batch: int = 1, **engine: Any) -> dict[str, Any]:
    return {
        "name": "t", "model": str(model),
        "engine": {"kind": "vllm", "load_format": "dummy", "graph": "eager", "kv_cache_bytes": 1 << 26, **engine},
        "workload": {"input_tokens": 9, "output_tokens": 24, "repeats": 2, "warmup_tokens": 2},
        "probe": {"buffer_bytes": 1 << 20, "survey_s": 0.1, "reading_s": 0.001},
        "sweep": {"over": "batch", "values": (1, batch)} if batch > 1 else None,
    }  # fmt: skip


@contextmanager
def opened(model: Path, batch: int = 1, **engine: Any) -> Iterator[Any]:
    """The engine of a run with prompts of 9 tokens, answers of 24, and room for a batch."""
    from harness.engines.registry import open_rig
    from harness.models import resolve_model
    from harness.specs.run import RunConfig

    config = RunConfig.model_validate(run_config(model, batch, **engine))
    with (
        TemporaryDirectory() as folder,
        closing(open_rig(config, resolve_model(str(model)))) as rig,
        closing(rig.open_engine(Path(folder))) as decoding,
    ):
        yield decoding
