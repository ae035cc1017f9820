"""A model as far as its speed depends on it: shapes, types and which parts exist.

Dense decoders of the Llama shape (Llama, Qwen2, Qwen3) so far. `specs.hf_config` reads it from a Hugging Face
`config.json`; `specs.layout` derives the tensors that such a model keeps.
"""

from typing import Any

from pydantic import PositiveFloat, PositiveInt

from harness.specs.base import Frozen


class ModelSpec(Frozen):
    """A dense decoder-only transformer with grouped-query attention and a gated MLP."""

    model_type: str
    """Hugging Face's name of the family: llama, qwen2, qwen3."""
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    """Explicit: Qwen3's 128 is not hidden_size / num_attention_heads."""
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool
    """The output head is the embedding: read every step, though the checkpoint holds no tensor of its own for it."""
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over head_dim on every query and key head (Qwen3)."""
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat
    rope_scaling: dict[str, Any] | None = None
    """As config.json gives it; null for plain rotary embeddings. Bytes do not depend on it, logits do."""
    dtype: str
    """Type of the weights as safetensors names it: BF16, F16, F32."""
    eos_token_ids: tuple[int, ...] = ()
    tensor_prefix: str = "model."
    """What stands before `layers.0...` in the checkpoint's tensor names."""

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (values: the same)."""
        return self.num_kv_heads * self.head_dim
