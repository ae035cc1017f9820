"""A model as far as its speed depends on it: shapes, types and which parts exist.

Decoders of the Llama shape so far (Llama, Qwen2, Qwen3), and those whose MLP is a mixture of experts (Mixtral,
Qwen3-MoE). `specs.hf_config` reads it from a Hugging Face `config.json`; `specs.layout` derives the tensors that such a
model keeps.
"""

from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from harness.errors import ConfigError
from harness.specs.base import Frozen
from harness.specs.layer import Attention, GatedMlp, LayerKind


class ModelSpec(Frozen):
    """A decoder-only transformer: a few kinds of layers in a pattern."""

    model_type: str
    """Hugging Face's name of the family: llama, qwen2, qwen3, mixtral, qwen3_moe."""
    hidden_size: PositiveInt
    kinds: tuple[LayerKind, ...] = Field(min_length=1)
    """Distinct kinds of layers."""
    pattern: tuple[NonNegativeInt, ...] = Field(min_length=1)
    """For each layer, from the first to the last, which of the kinds it is."""
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool
    """The output head is the embedding: read every step, though the checkpoint holds no tensor of its own for it."""
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat
    rope_scaling: dict[str, Any] | None = None
    """As config.json gives it; null for plain rotary embeddings. Bytes do not depend on it, logits do."""
    dtype: str
    """Type of the weights as safetensors names it: BF16, F16, F32."""
    eos_token_ids: tuple[int, ...] = ()
    tensor_prefix: str = "model."
    """What stands before `layers.0...` in the checkpoint's tensor names."""

    @model_validator(mode="after")
    def _pattern_of_its_kinds(self) -> "ModelSpec":
        if max(self.pattern) >= len(self.kinds):
            raise ValueError(f"pattern names kind {max(self.pattern)} of {len(self.kinds)}")
        return self

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        return tuple(self.kinds[kind] for kind in self.pattern)

    @property
    def num_layers(self) -> int:
        return len(self.pattern)

    def dense(self) -> tuple[Attention, GatedMlp]:
        """The parts of every layer, for what runs plain dense models alone. Raises ConfigError for others."""
        mlp = self.kinds[0].mlp
        if len(self.kinds) > 1 or not isinstance(mlp, GatedMlp) or self.kinds[0].mixer.window is not None:
            raise ConfigError(
                f"this {self.model_type} is not plain dense: its layers differ, or have experts or a window",
                "this command runs dense models in this version; `harness plan` knows this one's bytes",
            )
        return self.kinds[0].mixer, mlp
