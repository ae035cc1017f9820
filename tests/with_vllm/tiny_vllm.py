"""Tiny models that vLLM runs on a CPU, and its engine on one of them, opened without a run."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tiny_models import BASE, CASES, save_tiny

# On a CPU vLLM knows heads of 32 and more, and a delta rule in bf16 whose heads have 128.
CHANGES: dict[str, dict[str, Any]] = {
    "qwen3": {}, "llama": {"hidden_size": 128}, "qwen3.5": {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
}  # fmt: skip
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM", "qwen3.5": "Qwen3_5ForCausalLM"}
VLLM_CASES: dict[str, dict[str, Any]] = {
    case: CASES[case] | CHANGES[case] | {"architectures": [name]} for case, name in ARCHITECTURES.items()
}
VOCAB = BASE["vocab_size"]


def vllm_config(folder: Path, case: str, **changes: Any) -> Path:
    """A folder with a config.json alone: vLLM draws the weights, so small that all tokens are about as likely. Answers
    of such a model show that it runs, and nothing of what its layers compute."""
    path = folder / case
    path.mkdir(parents=True, exist_ok=True)
    values = BASE | VLLM_CASES[case] | {"dtype": "bfloat16"} | changes
    (path / "config.json").write_text(json.dumps(values))
    return path


def save_checkpoint(folder: Path, case: str, dtype: str, **changes: Any) -> Path:
    """Weights that make tokens differ by far, and the delta rule's states in the type that checkpoints name."""
    states = {"mamba_ssm_dtype": "float32"} if case == "qwen3.5" else {}
    return save_tiny(case, folder, dtype, **CHANGES[case], **states, **changes)


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
