"""Proof that weights stay as they were loaded: hashes of their bytes, before vLLM touches them and at any time."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def tensor_hash(tensor: Tensor) -> str:
    """SHA-256 of type, shape, strides and bytes: a transposed copy is no longer what was loaded."""
    from torch import uint8

    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(uint8)
    data: Any = flat.numpy()
    digest.update(data)
    return digest.hexdigest()
