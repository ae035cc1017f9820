"""The model's weights as the decoder reads them: from a checkpoint or drawn from a seed, fused where that is asked.

Fusing lays query, key and value (and gate and up) behind each other in one tensor, row by row as they were: one
larger product instead of three. Every value and every row's layout stays; nothing is converted or packed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.checkpoint import open_checkpoint
from harness.engines.native.memory import empty
from harness.errors import CheckpointError, ConfigError, UnavailableError
from harness.models import ResolvedModel
from harness.specs.layout import EMBEDDING, LM_HEAD, model_tensors
from harness.specs.model import ModelSpec
from harness.specs.tensor import TensorMeta

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

# Which projections become one product, and what it is called.
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}
SINGLE = {"o": ("self_attn.o_proj",), "down": ("mlp.down_proj",)}
UNFUSED = {
    "q": ("self_attn.q_proj",), "k": ("self_attn.k_proj",), "v": ("self_attn.v_proj",),
    "gate": ("mlp.gate_proj",), "up": ("mlp.up_proj",),
}  # fmt: skip

Fill = Callable[[TensorMeta, torch.Tensor], None]
"""Puts a tensor's values into a place of its shape."""


@dataclass(frozen=True)
class Linear:
    """One product's weight [n, k] and bias [n]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class LayerWeights:
    """One layer: its products by role, its norms."""

    linears: dict[str, Linear]
    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True)
class ModelWeights:
    """All that a step reads. `lm_head` is `embedding` itself in a tied model."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor


def roles(fuse: bool) -> dict[str, tuple[str, ...]]:
    """Products of a layer by role, each with the checkpoint's projections it is made of."""
    return {**(FUSED if fuse else UNFUSED), **SINGLE}


def load_weights(model: ResolvedModel, dtype: str, device: torch.device, fuse: bool) -> ModelWeights:
    """Weights of a checkpoint on `device`, converted to `dtype` where they are of another type."""
    if model.folder is None:
        raise UnavailableError(
            f"no weights of {model.name!r} are on this machine",
            "give a checkpoint's folder as model, or set engine.weights to synthetic",
        )
    from safetensors import safe_open

    checkpoint = open_checkpoint(model.folder)
    shapes = {meta.name: meta for meta in checkpoint.tensors}

    def fill(meta: TensorMeta, place: torch.Tensor) -> None:
        found = shapes.get(meta.name)
        if found is None:
            raise CheckpointError(f"{model.folder}: tensor {meta.name!r} is missing", "download the checkpoint again")
        if found.shape != meta.shape or found.dtype not in TORCH_DTYPES:
            is_a = f"{found.dtype} {list(found.shape)}"
            raise CheckpointError(
                f"{model.folder}: tensor {meta.name!r} is {is_a}, config.json makes it {list(meta.shape)}",
                f"check that config.json and weights belong together; types: {', '.join(TORCH_DTYPES)}",
            )
        with safe_open(checkpoint.files[meta.name], framework="pt") as file:
            place.copy_(file.get_tensor(meta.name))

    untied_but_absent = not model.spec.tie_word_embeddings and LM_HEAD not in shapes
    return _build(model.spec, dtype, device, fuse, fill, tied=model.spec.tie_word_embeddings or untied_but_absent)


def synthetic_weights(spec: ModelSpec, dtype: str, device: torch.device, fuse: bool, seed: int) -> ModelWeights:
    """Random weights of the model's shapes: normal with deviation k^-0.5, so that activations keep their scale.

    A tensor's values depend on the seed and its name alone, not on fusing or order. Norm weights are near 1.
    """

    def fill(meta: TensorMeta, place: torch.Tensor) -> None:
        generator = torch.Generator(device=device).manual_seed(zlib.crc32(f"{seed}/{meta.name}".encode()))
        if meta.name.endswith("norm.weight"):
            place.normal_(1.0, 0.1, generator=generator)
        else:
            place.normal_(0.0, meta.shape[-1] ** -0.5, generator=generator)

    return _build(spec, dtype, device, fuse, fill, tied=spec.tie_word_embeddings)


def _build(spec: ModelSpec, dtype: str, device: torch.device, fuse: bool, fill: Fill, tied: bool) -> ModelWeights:
    """Allocate every tensor and have it filled, parts of a fused one each in its rows."""
    if dtype not in TORCH_DTYPES:
        raise ConfigError(f"dtype {dtype} can't be run", f"allowed: {', '.join(TORCH_DTYPES)}")
    metas = {meta.name: meta for meta in model_tensors(spec)}
    prefix = spec.tensor_prefix

    def together(names: list[str]) -> torch.Tensor | None:
        parts = [metas[name] for name in names if name in metas]
        if not parts:
            return None
        rows = sum(part.shape[0] for part in parts)
        whole = empty((rows, *parts[0].shape[1:]), TORCH_DTYPES[dtype], device)
        for part, place in zip(parts, torch.split(whole, [part.shape[0] for part in parts]), strict=True):
            fill(part, place)
        return whole

    def one(name: str) -> torch.Tensor:
        tensor = together([name])
        if tensor is None:
            raise CheckpointError(f"a {spec.model_type} has no tensor {name!r}", "a fault of the harness: report it")
        return tensor

    def layer(index: int) -> LayerWeights:
        at = f"{prefix}layers.{index}."
        linears = {}
        for role, names in roles(fuse).items():
            weight = together([f"{at}{name}.weight" for name in names])
            bias = together([f"{at}{name}.bias" for name in names])
            if weight is not None:
                linears[role] = Linear(weight, bias)
        return LayerWeights(
            linears,
            one(f"{at}input_layernorm.weight"),
            one(f"{at}post_attention_layernorm.weight"),
            together([f"{at}self_attn.q_norm.weight"]),
            together([f"{at}self_attn.k_norm.weight"]),
        )

    embedding = one(prefix + EMBEDDING)
    layers = tuple(layer(index) for index in range(spec.num_layers))
    return ModelWeights(embedding, layers, one(f"{prefix}norm.weight"), embedding if tied else one(LM_HEAD))
