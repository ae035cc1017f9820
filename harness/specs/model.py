"""A model as far as its speed depends on it: shapes, types and which parts exist.

`specs.parts` are what layers are made of, `specs.hf_config` reads a model from a Hugging Face `config.json`, and
`specs.layout` derives the tensors that it keeps.
"""

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from harness.errors import ConfigError
from harness.specs.base import Frozen
from harness.specs.layer import LayerKind
from harness.specs.parts.attention import Attention
from harness.specs.parts.mlp import GatedMlp


class ModelSpec(Frozen):
    """A decoder-only transformer: a few kinds of layers in a pattern."""

    model_type: str
    """Hugging Face's name of the family: llama, qwen3_moe, ..."""
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
    centered_norms: bool = False
    """Norm weights are stored as their distance from 1 (Gemma, Qwen3-Next, Qwen3.5)."""
    rope_theta: PositiveFloat
    rope_scaling: dict[str, Any] | None = None
    """As config.json gives it; null for plain rotary embeddings. Bytes do not depend on it, logits do."""
    rotary_frac: NonNegativeFloat = 1.0
    """Part of each head that rotary embeddings turn; 0 where attention knows no positions (Nemotron-H, Jamba)."""
    dtype: str
    """Type of the weights as safetensors names it: BF16, F16, F32."""
    eos_token_ids: tuple[int, ...] = ()
    tensor_prefix: str = "model."
    """What stands before `layers.0...` in the checkpoint's tensor names, and before these two:"""
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    lm_head: str = "lm_head"
    """The output head's whole name; some wrappers keep it within their text model."""
    quantization: str | None = None
    """How the weights were packed or scaled (gptq, awq, fp8, compressed-tensors); null: they are of `dtype`."""
    not_read: tuple[str, ...] = ()
    """How names of tensors begin that decoding never reads: a vision tower, a draft head."""

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

    def cache_bytes(self, num_positions: int, dtype_bytes: int) -> int:
        """Keys, values and recurrent state of one request of so many positions."""
        return sum(
            layer.mixer.kv_values * num_positions * dtype_bytes + layer.mixer.state_bytes(dtype_bytes)
            for layer in self.layers
        )

    def dense(self) -> tuple[Attention, GatedMlp]:
        """The parts of every layer, for what runs plain dense models alone. Raises ConfigError for others."""
        mixer, mlp = self.kinds[0].mixer, self.kinds[0].mlp
        alike = len(self.kinds) == 1 and self.rotary_frac == 1.0 and self.quantization is None
        plain = isinstance(mixer, Attention) and mixer.window is None and not (mixer.output_gate or mixer.sinks)
        silu = isinstance(mlp, GatedMlp) and mlp.activation == "silu"
        usual = alike and self.lm_head == "lm_head"
        if not (usual and plain and silu) or not isinstance(mixer, Attention) or not isinstance(mlp, GatedMlp):
            raise ConfigError(
                f"this {self.model_type} is not plain dense: its layers differ, or have experts, a window, a gate or"
                " another activation than silu, or it is quantized, or a wrapper keeps its output head",
                "this command runs dense models in this version; `harness plan` knows this one's bytes",
            )
        return mixer, mlp
