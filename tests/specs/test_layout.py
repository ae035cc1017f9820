"""Where checkpoints keep a text model: the same tensors by the names of each kind of wrapper."""

from typing import Any

import pytest

from harness.errors import CheckpointError, ConfigError
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import as_in_checkpoint, model_tensors
from harness.specs.model import ModelSpec
from harness.specs.tensor import TensorMeta
from harness.traffic import decode_traffic

GEMMA_3_4B: dict[str, Any] = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "eos_token_id": [1, 106],
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 27},
}  # fmt: skip
"""google/gemma-3-4b-it, which leaves most fields to transformers' defaults."""

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "hidden_act": "silu",
    "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"num_hidden_layers": 2}}


def renamed(spec: ModelSpec, prefix: str, head: str = "lm_head") -> list[TensorMeta]:
    """The model's tensors as a checkpoint has them that keeps its text model elsewhere."""
    named = {t.name.replace(spec.tensor_prefix, prefix).replace("lm_head", head): t for t in model_tensors(spec)}
    return [tensor.model_copy(update={"name": name}) for name, tensor in named.items()]


def placed(spec: ModelSpec, tensors: list[TensorMeta]) -> ModelSpec:
    return as_in_checkpoint(spec, {tensor.name for tensor in tensors})


def test_gemma_3_4b_by_hand() -> None:
    traffic = decode_traffic(model_spec_from_hf(GEMMA_3_4B), model_tensors(model_spec_from_hf(GEMMA_3_4B)), "config")
    attention = 2 * 8 * 256 * 2560 + 2 * 4 * 256 * 2560 + 2 * 256
    text = 34 * (attention + 3 * 10_240 * 2560 + 4 * 2560) + 2560 + 262_208 * 2560
    # The Hub counts 4,300,079,472 with a vision tower of 416,866,032 and a projector (1152 x 2560, and a norm)
    assert text + 416_866_032 + 1152 * 2560 + 1152 == 4_300_079_472
    assert traffic.weight_read_bytes == traffic.resident_weight_bytes == 2 * text
    assert traffic.kv_bytes_per_context_token == 34 * 2 * 4 * 256 * 2 == 139_264
    assert traffic.cache_bytes(2048) == (29 * 1024 + 5 * 2048) * 4096, "all but every sixth layer look back 1,024"


@pytest.mark.parametrize(
    ("prefix", "image"), [("language_model.model.", ""), ("model.language_model.", "model."), ("model.", "model.")]
)
def test_a_wrappers_text_model_is_found_wherever_its_checkpoint_keeps_it(prefix: str, image: str) -> None:
    spec = model_spec_from_hf(GEMMA_3_4B)
    names = ("vision_tower.vision_model.post_layernorm.weight", "multi_modal_projector.mm_soft_emb_norm.weight")
    beside = [TensorMeta(name=image + name, dtype="BF16", shape=(1152,)) for name in names]
    tensors = [*renamed(spec, prefix), *beside]
    found = placed(spec, tensors)
    assert found.tensor_prefix == prefix
    traffic = decode_traffic(found, tensors, "headers")
    plain = decode_traffic(spec, model_tensors(spec), "headers")
    assert traffic.weight_read_bytes == plain.weight_read_bytes
    assert traffic.resident_weight_bytes - plain.resident_weight_bytes == 2 * 2 * 1152


def test_a_head_within_a_wrappers_text_model_is_read() -> None:
    spec = model_spec_from_hf(LLAVA)
    tensors = renamed(spec, "language_model.model.", "language_model.lm_head")
    found = placed(spec, tensors)
    traffic = decode_traffic(found, tensors, "headers")
    assert traffic == decode_traffic(spec, model_tensors(spec), "headers")
    # narrower than the embedding, so that it is seen which of the two is counted
    halved = [t.model_copy(update={"dtype": "F8_E4M3"}) if "lm_head" in t.name else t for t in tensors]
    less = decode_traffic(found, halved, "headers").weight_read_bytes
    assert traffic.weight_read_bytes - less == 100 * 64
    with pytest.raises(ConfigError, match="output head"):
        found.dense()
    assert spec.dense(), "where the head has its usual name"


def test_a_checkpoint_without_any_known_place_is_refused_by_the_embeddings_name() -> None:
    spec = model_spec_from_hf(GEMMA_3_4B)
    tensors = renamed(spec, "thinker.")
    with pytest.raises(CheckpointError, match=r"model\.language_model\.embed_tokens\.weight"):
        decode_traffic(placed(spec, tensors), tensors, "headers")


def test_what_a_text_config_leaves_null_its_wrapper_says() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    said = {"dtype": "float16", "tie_word_embeddings": True, "eos_token_id": 2}
    left = {"dtype": None, "tie_word_embeddings": None, "eos_token_id": 7}
    spec = model_spec_from_hf({**said, "text_config": {**text, **left}})
    assert (spec.dtype, spec.tie_word_embeddings, spec.eos_token_ids) == ("F16", True, (7,))
