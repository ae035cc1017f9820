"""Where a model's tensors come from: a checkpoint, or a seed. Fused ones are laid behind each other on the way.

Fusing lays query, key and value (and gate and up) behind each other in one tensor, row by row as they were: one
larger product instead of three. Every value and every row's layout stays; nothing is converted or packed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from harness.checkpoint import open_checkpoint
from harness.engines.native.memory import empty
from harness.errors import CheckpointError, ConfigError, UnavailableError
from harness.models import ResolvedModel
from harness.specs.layout import head_name, model_tensors
from harness.specs.model import ModelSpec
from harness.specs.tensor import TensorMeta

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

Fill = Callable[[TensorMeta, torch.Tensor], None]
"""Puts a tensor's values into a place of its shape, converting them to the place's type."""


@dataclass(frozen=True)
class Linear:
    """One product's weight [n, k] and bias [n]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class TensorSource:
    """A model's tensors by their names in its checkpoint, on `device`."""

    spec: ModelSpec
    dtype: str
    """What weights are converted to where they are of another type (safetensors name)."""
    device: torch.device
    fill: Fill
    shapes: dict[str, TensorMeta]
    """Name, type and shape as config.json makes them."""
    tied: bool
    """The output head is the embedding: because config.json says so, or because the checkpoint has no other."""
    _made: dict[tuple[tuple[str, ...], torch.dtype], torch.Tensor] = field(default_factory=dict)
    """Two engines of one source share their weights."""

    def has(self, name: str) -> bool:
        return name in self.shapes

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, in the model's type or in `dtype`."""
        return self._together([name], dtype or TORCH_DTYPES[self.dtype])

    def linear(self, *modules: str) -> Linear:
        """The products of these modules as one, their rows behind each other; biases if they have them."""
        dtype, biases = TORCH_DTYPES[self.dtype], [f"{module}.bias" for module in modules]
        weight = self._together([f"{module}.weight" for module in modules], dtype)
        return Linear(weight, self._together(biases, dtype) if self.has(biases[0]) else None)

    def _together(self, names: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
        """One allocation, each tensor in its rows; the same one whenever it is asked for."""
        key = tuple(names), dtype
        if key not in self._made:
            self._made[key] = self._loaded(names, dtype)
        return self._made[key]

    def _loaded(self, names: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
        parts = [self.shapes[name] for name in names]
        rows = [part.shape[0] for part in parts]
        whole = empty((sum(rows), *parts[0].shape[1:]), dtype, self.device)
        for part, place in zip(parts, torch.split(whole, rows), strict=True):
            self.fill(part, place)
        return whole


def checkpoint_source(model: ResolvedModel, dtype: str, device: torch.device) -> TensorSource:
    """Tensors of a checkpoint. Raises UnavailableError without one, CheckpointError where it is not config.json's."""
    if model.folder is None:
        raise UnavailableError(
            f"no weights of {model.name!r} are on this machine",
            "give a checkpoint's folder as model, or set engine.weights to synthetic",
        )
    from safetensors import safe_open

    checkpoint = open_checkpoint(model.folder)
    found = {meta.name: meta for meta in checkpoint.tensors}

    def fill(meta: TensorMeta, place: torch.Tensor) -> None:
        _check_same(found.get(meta.name), meta, str(model.folder))
        with safe_open(checkpoint.files[meta.name], framework="pt") as file:
            place.copy_(file.get_tensor(meta.name))

    untied_but_absent = not model.spec.tie_word_embeddings and head_name(model.spec) not in found
    return _source(model.spec, dtype, device, fill, tied=model.spec.tie_word_embeddings or untied_but_absent)


def synthetic_source(spec: ModelSpec, dtype: str, device: torch.device, seed: int) -> TensorSource:
    """Random weights of the model's shapes: normal with deviation k^-0.5, so that activations keep their scale.

    A tensor's values depend on the seed and its name alone, not on fusing or order. Norm weights are near what leaves
    a value as it is: 1, or 0 where they are stored as their distance from 1. What decides how fast a recurrent state
    decays is near 0, a decay of about a half.
    """

    def fill(meta: TensorMeta, place: torch.Tensor) -> None:
        generator = torch.Generator(device=device).manual_seed(zlib.crc32(f"{seed}/{meta.name}".encode()))
        if meta.name.endswith("norm.weight"):
            own_norm = meta.name.endswith("linear_attn.norm.weight")  # which no family stores as a distance
            place.normal_(0.0 if spec.centered_norms and not own_norm else 1.0, 0.1, generator=generator)
        else:
            place.normal_(0.0, meta.shape[-1] ** -0.5, generator=generator)

    return _source(spec, dtype, device, fill, tied=spec.tie_word_embeddings)


def blank_source(spec: ModelSpec) -> TensorSource:
    """Tensors of the model's shapes and type without memory: a step can be bound to them, and not run."""
    return _source(spec, spec.dtype, torch.device("meta"), lambda meta, place: None, tied=spec.tie_word_embeddings)


def _source(spec: ModelSpec, dtype: str, device: torch.device, fill: Fill, tied: bool) -> TensorSource:
    if dtype not in TORCH_DTYPES:
        raise ConfigError(f"dtype {dtype} can't be run", f"allowed: {', '.join(TORCH_DTYPES)}")
    return TensorSource(spec, dtype, device, fill, {meta.name: meta for meta in model_tensors(spec)}, tied)


def _check_same(found: TensorMeta | None, wanted: TensorMeta, where: str) -> None:
    if found is None:
        raise CheckpointError(f"{where}: tensor {wanted.name!r} is missing", "download the checkpoint again")
    if found.shape != wanted.shape or found.dtype not in TORCH_DTYPES:
        is_a = f"{found.dtype} {list(found.shape)}"
        raise CheckpointError(
            f"{where}: tensor {wanted.name!r} is {is_a}, config.json makes it {list(wanted.shape)}",
            f"check that config.json and weights belong together; types: {', '.join(TORCH_DTYPES)}",
        )
