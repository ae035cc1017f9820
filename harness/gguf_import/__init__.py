"""From a GGUF file of the llama architecture to a Hugging Face folder with bf16 weights.

For a demonstration model that any package index can deliver. It is no lossless path: quantized weights stay
as coarse as they are, and are only stored as bf16. What is not understood is refused by name: a key or tensor
that is passed over makes a model that talks nonsense.

Needs the extra `gguf`; no torch.
"""

from harness.gguf_import.convert import convert_gguf

__all__ = ["convert_gguf"]
