"""What a checkpoint says of one tensor, and how many bytes that is."""

from math import prod

from pydantic import field_validator

from harness.specs.base import Frozen

# safetensors' names. Bits, because 4-bit floats share a byte.
DTYPE_BITS = {
    "F64": 64, "I64": 64, "U64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F4": 4,
}  # fmt: skip

# The names that config.json files use.
CONFIG_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


class TensorMeta(Frozen):
    """One tensor as its safetensors header describes it: no data, only name, type and shape."""

    name: str
    dtype: str
    """A safetensors type name, such as BF16 or I32."""
    shape: tuple[int, ...]

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype not in DTYPE_BITS:
            raise ValueError(f"unknown tensor type {dtype!r}; known: {', '.join(DTYPE_BITS)}")
        return dtype

    @property
    def num_elements(self) -> int:
        """Product of the shape; a scalar has one element."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in the file. Packed types stay truthful: an int32 that packs eight 4-bit weights counts 4 bytes."""
        return self.num_elements * DTYPE_BITS[self.dtype] // 8


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a whole-byte type, by its safetensors name."""
    return DTYPE_BITS[dtype] // 8
