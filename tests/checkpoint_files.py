"""Checkpoints on disk, made by hand so that they can be wrong in every way. Used by test_checkpoint*.py."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint import INDEX, open_checkpoint
from harness.errors import CheckpointError

Header = dict[str, Any]
HALVES = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
WHOLE_MAP = {"a": "a.safetensors", "b": "b.safetensors"}


def entry(dtype: Any = "BF16", shape: Any = (2,), begin: Any = 0, end: Any = 4) -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_raw(path: Path, header: bytes, data_bytes: int = 0, claimed: int | None = None) -> None:
    """A safetensors file by hand: length, header, zeros."""
    length = struct.pack("<Q", len(header) if claimed is None else claimed)
    path.write_bytes(length + header + bytes(data_bytes))


def write_file(path: Path, header: Header, data_bytes: int) -> None:
    write_raw(path, json.dumps(header).encode(), data_bytes)


def write_sharded(folder: Path, weight_map: Any, total_size: Any = 18) -> None:
    """Shards a (tensor `a`, 12 bytes) and b (tensor `b`, 6 bytes), under an index of the test's choosing."""
    write_file(folder / "a.safetensors", {"a": HALVES}, 12)
    write_file(folder / "b.safetensors", {"b": {"dtype": "I8", "shape": [6], "data_offsets": [0, 6]}}, 6)
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))


def refusal(folder: Path) -> CheckpointError:
    """The error that opening raises: one line each for what and mend, and not a page long."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    for text in (caught.value.what, caught.value.mend):
        assert text and "\n" not in text and len(text) < 700
    return caught.value
