"""A folder with weights: the model is read as its checkpoint names it."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from harness.models import resolve_model
from harness.traffic import decode_traffic

TEXT = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "hidden_act": "silu",
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_wrappers_checkpoint_of_before_transformers_4_52(tmp_path: Path) -> None:
    config = {"torch_dtype": "float16", "text_config": TEXT, "vision_config": {"num_hidden_layers": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    at = "language_model.model."
    shapes = {
        f"{at}embed_tokens.weight": (100, 64), f"{at}norm.weight": (64,), "language_model.lm_head.weight": (100, 64),
        f"{at}layers.0.input_layernorm.weight": (64,), f"{at}layers.0.post_attention_layernorm.weight": (64,),
        f"{at}layers.0.self_attn.q_proj.weight": (64, 64), f"{at}layers.0.self_attn.k_proj.weight": (32, 64),
        f"{at}layers.0.self_attn.v_proj.weight": (32, 64), f"{at}layers.0.self_attn.o_proj.weight": (64, 64),
        f"{at}layers.0.mlp.gate_proj.weight": (96, 64), f"{at}layers.0.mlp.up_proj.weight": (96, 64),
        f"{at}layers.0.mlp.down_proj.weight": (64, 96), "vision_tower.patch_embedding.weight": (8, 8),
    }  # fmt: skip
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    model = resolve_model(str(tmp_path))
    traffic = decode_traffic(model.spec, model.tensors, model.tensors_source)
    layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64
    assert traffic.weight_read_bytes == 2 * (layer + 64 + 100 * 64)
    assert traffic.resident_weight_bytes == 2 * (layer + 64 + 2 * 100 * 64 + 8 * 8)
