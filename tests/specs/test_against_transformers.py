"""Tensors derived from a config.json against the modules that transformers builds of it, on the meta device."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

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


def compare(config: PreTrainedConfig, spec: ModelSpec) -> None:
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    theirs: Counter[str] = Counter()
    for tensor_name, held in network.state_dict().items():  # parameters, and what else a checkpoint keeps
        if not (tensor_name == "lm_head.weight" and config.tie_word_embeddings):
            theirs[_place(tensor_name)] += held.numel()
    ours: Counter[str] = Counter()
    for tensor in model_tensors(spec):
        ours[_place(tensor.name)] += tensor.num_elements
    assert ours == theirs


def _place(name: str) -> str:
    """The layer, or the name of what stands outside the layers; a wrapper's checkpoint says where its text model is."""
    parts = name.replace("model.language_model.", "model.").replace("backbone.", "model.").split(".")
    return ".".join(parts[:3]) if "layers" in parts else ".".join(parts)
