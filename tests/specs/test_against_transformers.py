"""Tensors derived from a config.json against the modules that transformers builds of it, on the meta device."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

from harness.models import model_names, resolve_model
from harness.resources import find_config
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import model_tensors
from harness.specs.model import ModelSpec

pytestmark = [pytest.mark.torch, pytest.mark.reference]


@pytest.mark.parametrize("name", model_names())
def test_as_many_values_layer_by_layer(name: str) -> None:
    """Not name by name: transformers keeps the experts of a layer in two tensors, checkpoints in three each."""
    config = AutoConfig.from_pretrained(find_config("models", name, "{name}/config.json").parent)
    compare(config, resolve_model(name).spec)


def test_gpt_oss() -> None:
    """transformers' default is the 120b: known by its packed checkpoint alone, so no file of ours has it."""
    config = AutoConfig.for_model("gpt_oss", dtype="bfloat16")
    compare(config, model_spec_from_hf(config.to_dict()))


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_gemma(family: str) -> None:
    config = AutoConfig.for_model(family, dtype="bfloat16")
    compare(config, model_spec_from_hf(config.to_dict()))


@pytest.mark.parametrize(
    "changes", [{}, {"moe_latent_size": 1024}, {"use_bias": True, "use_conv_bias": False}], ids=["", "latent", "biases"]
)
def test_nemotron_h(changes: dict[str, Any]) -> None:
    """transformers' default has one layer of each of the four kinds."""
    config = AutoConfig.for_model("nemotron_h", dtype="bfloat16", **changes)
    compare(config, model_spec_from_hf(config.to_dict()))


@pytest.mark.parametrize("changes", [{}, {"mamba_proj_bias": True, "mamba_conv_bias": False}], ids=["", "biases"])
def test_jamba(changes: dict[str, Any]) -> None:
    """transformers' default is Jamba v0.1."""
    config = AutoConfig.for_model("jamba", dtype="bfloat16", **changes)
    compare(config, model_spec_from_hf(config.to_dict()))


@pytest.mark.parametrize(
    "changes", [{"attn_layer_indices": [9, 18, 27]}, {"attention_bias": True, "mlp_bias": True, "mamba_n_groups": 2}]
)
def test_bamba(changes: dict[str, Any]) -> None:
    config = AutoConfig.for_model("bamba", dtype="bfloat16", **changes)
    compare(config, model_spec_from_hf(config.to_dict()))


def test_qwen3_5_moe() -> None:
    """transformers' default is the 35B-A3B."""
    config = AutoConfig.for_model("qwen3_5_moe_text", dtype="bfloat16")
    compare(config, model_spec_from_hf(config.to_dict()))


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5_moe"])
def test_wrappers(family: str) -> None:
    """A vision tower and a projector beside the text model, which alone is ours."""
    config = AutoConfig.for_model(family, dtype="bfloat16")
    spec = model_spec_from_hf(config.to_dict())
    compare(config, spec, AutoModelForImageTextToText, beside=tuple(spec.not_read))


def test_gemma_3s_defaults_are_those_that_transformers_documents() -> None:
    config = AutoConfig.for_model("gemma3_text", hidden_size=2560, dtype="bfloat16")
    said = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 26}
    assert model_spec_from_hf({**said, "dtype": "bfloat16", "eos_token_id": 1}) == model_spec_from_hf(config.to_dict())


def compare(
    config: PreTrainedConfig, spec: ModelSpec, loader: Any = AutoModelForCausalLM, beside: tuple[str, ...] = ()
) -> None:
    with torch.device("meta"):
        network = loader.from_config(config)
    theirs: Counter[str] = Counter()
    for tensor_name, held in network.state_dict().items():  # parameters, and what else a checkpoint keeps
        tied = tensor_name == "lm_head.weight" and config.tie_word_embeddings
        if not tied and not tensor_name.startswith(beside):
            theirs[_place(tensor_name)] += held.numel()
    ours: Counter[str] = Counter()
    for tensor in model_tensors(spec):
        ours[_place(tensor.name)] += tensor.num_elements
    assert ours == theirs


def _place(name: str) -> str:
    """The layer, or the name of what stands outside the layers; a wrapper's checkpoint says where its text model is."""
    parts = name.replace("model.language_model.", "model.").replace("backbone.", "model.").split(".")
    return ".".join(parts[:3]) if "layers" in parts else ".".join(parts)
