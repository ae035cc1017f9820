"""The conversion as a whole, and the JSON files that tell of the model."""

import json
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import __version__
from harness.checkpoint import SINGLE, open_checkpoint
from harness.errors import ConfigError, UnavailableError
from harness.gguf_import.gguf_file import GgufFile, read_gguf, sha256
from harness.gguf_import.tokenizer import build_tokenizer, tokenizer_config
from harness.gguf_import.weights import match_tensors, write_weights
from harness.specs.hf_config import model_spec_from_hf

# Under `llama.` in the GGUF, and in config.json.
_CONFIG_KEYS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.dimension_count": "head_dim",
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# A GGUF may say the width of a head again: it has to be the rotary embedding's.
_HEAD_DIM_KEYS = ("llama.attention.key_length", "llama.attention.value_length")


def convert_gguf(gguf_path: Path, folder: Path, origin: str | None = None) -> None:
    """Write config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json and source.json.

    `origin` says in source.json where the file is from. The folder appears whole or not at all: it is written
    beside its place under another name, and renamed. Raises ConfigError where it exists already,
    CheckpointError for whatever in the GGUF is not understood, UnavailableError without the extra `gguf`.
    """
    missing = [name for name in ("gguf", "tokenizers") if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"{missing[0]} is not installed", "pip install 'llm-decode-harness[gguf]'")
    if folder.exists():
        raise ConfigError(f"{folder} exists already", "remove it, or name another folder")
    gguf = read_gguf(gguf_path)
    config = model_config(gguf)
    spec = model_spec_from_hf(config, source=f"{gguf_path}, as config.json")
    tensors = match_tensors(gguf, spec)
    tokenizer = build_tokenizer(gguf, spec.vocab_size)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        unfinished = Path(scratch) / folder.name
        unfinished.mkdir()
        write_weights(gguf, spec, tensors, unfinished / SINGLE)
        open_checkpoint(unfinished)  # another's reading of the file that we wrote
        tokenizer.save(str(unfinished / "tokenizer.json"))
        _write_json(unfinished / "tokenizer_config.json", tokenizer_config(gguf, spec.max_position_embeddings))
        _write_json(unfinished / "config.json", config)
        _write_json(unfinished / "source.json", _source(gguf, origin))
        unfinished.rename(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM, every field explicit.

    A key that the GGUF lacks is null here, and for model_spec_from_hf to refuse.
    """
    values = {theirs: _plain(gguf.fields.get(f"llama.{key}")) for key, theirs in _CONFIG_KEYS.items()}
    for key, value in gguf.fields.items():
        agrees = key in _HEAD_DIM_KEYS and value == values["head_dim"]
        if key.startswith("llama.") and key.removeprefix("llama.") not in _CONFIG_KEYS and not agrees:
            raise gguf.fault(f"{key} is {value!r}", "this is not understood, and may not be passed over")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **values,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": "bfloat16",
        "bos_token_id": gguf.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.fields.get("tokenizer.ggml.padding_token_id"),
    }


def _plain(value: Any) -> Any:
    """A GGUF's floats are float32: 1e-05, not the 9.999999747378752e-06 that it becomes in a double."""
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def _source(gguf: GgufFile, origin: str | None) -> dict[str, Any]:
    """Where the weights are from, and how coarse they were."""
    return {
        "origin": origin or gguf.path.name,
        "gguf_file": gguf.path.name,
        "gguf_sha256": sha256(gguf.path),
        "gguf_tensor_types": dict(Counter(tensor.tensor_type.name for tensor in gguf.tensors.values())),
        "name": gguf.fields.get("general.name"),
        "license": gguf.fields.get("general.license"),
        "converted_by": f"llm-decode-harness {__version__}",
    }
