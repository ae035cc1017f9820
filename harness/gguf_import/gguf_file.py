"""A GGUF file's keys and tensors, by name, and its faults."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import CheckpointError

if TYPE_CHECKING:
    from gguf import ReaderTensor

T = TypeVar("T")


@dataclass(frozen=True)
class GgufFile:
    """Keys with their values, and tensors whose data is mapped and not read yet."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, ReaderTensor]

    def field(self, key: str, kind: type[T]) -> T:
        """A key that must be there, and of this type."""
        value = self.fields.get(key)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is a {type(value).__name__}"
            raise self.fault(f"{key} {found}", f"it must be a {kind.__name__}")
        return value

    def texts(self, key: str) -> list[str]:
        """An array of strings that must be there."""
        values = self.field(key, list)
        if not all(isinstance(value, str) for value in values):
            raise self.fault(f"{key} holds something else than strings", "fetch the file again")
        return values

    def fault(self, what: str, mend: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}", mend)


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_gguf(path: Path) -> GgufFile:
    """Keys and tensors of a llama GGUF. CheckpointError for a broken file, and for other architectures."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError) as fault:  # what gguf's reader raises on a broken file
        raise CheckpointError(f"{path} is not a readable GGUF file: {fault}", "fetch the file again") from None
    file = GgufFile(path, fields, {tensor.name: tensor for tensor in reader.tensors})
    architecture = file.field("general.architecture", str)
    if architecture != "llama":
        raise file.fault(f"general.architecture is {architecture!r}", "only llama is converted")
    return file
