"""model.safetensors: a GGUF's tensors under Hugging Face's names, in its row order, as bf16."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.gguf_import.gguf_file import GgufFile
from harness.specs.layout import model_tensors
from harness.specs.model import ModelSpec

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from numpy import float32, uint16
    from numpy.typing import NDArray

_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def match_tensors(gguf: GgufFile, spec: ModelSpec) -> dict[str, ReaderTensor]:
    """Hugging Face name -> the GGUF's tensor: all those of the spec in its shapes, and none else."""
    tensors = {_hf_name(gguf, name): tensor for name, tensor in gguf.tensors.items()}
    wanted = {meta.name: meta.shape for meta in model_tensors(spec)}
    for name, tensor in tensors.items():
        shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF lists the fastest dimension first
        if shape != wanted.get(name):
            should = wanted.get(name, "no part of this model")
            raise gguf.fault(f"tensor {tensor.name} is {shape}, and should be {should}", "fetch the file again")
    for name in wanted:
        if name not in tensors:
            raise gguf.fault(f"holds no tensor for {name}", "fetch the file again")
    return tensors


def _hf_name(gguf: GgufFile, name: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer and layer[2] in _LAYER_TENSORS:
        return f"model.layers.{layer[1]}.{_LAYER_TENSORS[layer[2]]}.weight"
    if name not in _TENSORS:
        raise gguf.fault(f"tensor {name!r} is not understood", "only plain llama models are converted")
    return _TENSORS[name]


def write_weights(gguf: GgufFile, spec: ModelSpec, tensors: dict[str, ReaderTensor], path: Path) -> None:
    """Tensor by tensor, so that memory holds one; the library's writers want all, and for bf16 torch."""
    metas, (heads, _) = model_tensors(spec), spec.dense()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for meta in metas:
        end = position + meta.num_bytes
        header[meta.name] = {"dtype": meta.dtype, "shape": meta.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants data aligned to 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for meta in metas:
            values = _dequantized(gguf, tensors[meta.name])
            if meta.name.endswith("q_proj.weight"):
                values = unpermuted(values, heads.num_heads)
            elif meta.name.endswith("k_proj.weight"):
                values = unpermuted(values, heads.num_kv_heads)
            file.write(bf16_bits(values).tobytes())


def _dequantized(gguf: GgufFile, tensor: ReaderTensor) -> NDArray[float32]:
    import numpy as np
    from gguf import dequantize

    kind = tensor.tensor_type
    try:
        values: NDArray[float32] = dequantize(tensor.data, kind)
    except NotImplementedError:
        raise gguf.fault(f"tensor {tensor.name} is of type {kind.name}", "gguf can't dequantize it") from None
    if not np.isfinite(values).all():
        raise gguf.fault(f"tensor {tensor.name} holds NaN or infinity", "fetch the file again")
    return values


def unpermuted(weight: NDArray[float32], num_heads: int) -> NDArray[float32]:
    """Query or key rows, [num_heads * head_dim, hidden], from llama.cpp's order to Hugging Face's.

    The rotary embedding turns a head's rows in pairs. llama.cpp keeps a pair side by side (rows 2i, 2i + 1),
    Hugging Face half a head apart (rows i, i + head_dim / 2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def bf16_bits(values: NDArray[float32]) -> NDArray[uint16]:
    """Finite float32 values as bf16 bit patterns, rounded to nearest, ties to even; numpy has no such type.

    Adding 0x7FFF, and 1 more where the half that stays is odd, carries into it exactly when rounding goes up.
    """
    import numpy as np

    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: NDArray[uint16] = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return rounded
