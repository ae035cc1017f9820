"""What a checkpoint folder holds, by its safetensors headers: no tensor is loaded, nothing is ever unpickled.

The safetensors library reads and validates each header (in Rust, without torch): it bounds the header, wants
offsets that cover the data exactly once, and lengths that fit shape and type. What it does not do is done
here: how shards and index fit together, and faults told with the file, the tensor and a mend.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, NonNegativeInt, ValidationError

from harness.errors import CheckpointError
from harness.specs.tensor import DTYPE_BITS, TensorMeta

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Over 100,000 tensors, as the largest public models have, take some 15 MB. Parsing takes up to 20 times that.
_MAX_INDEX_BYTES = 32_000_000
# The library's limit.
_MAX_HEADER_BYTES = 100_000_000
# A larger header that the library refused is not parsed again to name the tensor: that costs memory here.
_MAX_EXPLAINED_BYTES = 10_000_000
_LFS_POINTER = b"version https://git-lfs"
_FETCH_AGAIN = "fetch the file again"
_FETCH_ALL_AGAIN = "fetch the index and all its shards again"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose headers and index agree. Loaders open `files[name]` with the library's safe_open."""

    folder: Path
    tensors: tuple[TensorMeta, ...]
    """All tensors: file by file, by name within a file."""
    files: Mapping[str, Path]
    """Tensor name -> the file that holds it."""

    @property
    def total_bytes(self) -> int:
        """Tensor data of all files, without headers."""
        return sum(tensor.num_bytes for tensor in self.tensors)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of a folder's model.safetensors, or of the shards that its index lists.

    A folder with both is read as transformers reads it: the single file. Files that neither names are not
    opened. Raises CheckpointError, naming the file and where possible the tensor, for whatever is missing,
    unreadable or contradicts itself.
    """
    try:
        if (folder / SINGLE).is_file():
            return _open_files(folder, [folder / SINGLE])
        if (folder / INDEX).is_file():
            return _open_sharded(folder)
    except OSError as fault:
        raise CheckpointError(f"{folder} can't be read: {fault}", "give a folder that can be read") from None
    raise _no_weights(folder)


def _open_files(folder: Path, paths: Iterable[Path]) -> Checkpoint:
    """Headers of these files; refuses a tensor that two of them hold."""
    tensors: list[TensorMeta] = []
    files: dict[str, Path] = {}
    for path in paths:
        for tensor in _read_header(path):
            other = files.setdefault(tensor.name, path)
            if other != path:
                raise CheckpointError(
                    f"tensor {_quoted(tensor.name)} stands in both {other} and {path}", _FETCH_ALL_AGAIN
                )
            tensors.append(tensor)
    return Checkpoint(folder, tuple(tensors), files)


# --- one safetensors file -----------------------------------------------------------------------------------


def _read_header(path: Path) -> list[TensorMeta]:
    """The tensors of one file, by name."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"{path} is missing", "fetch every file that the index lists")
    try:
        with safe_open(path, framework="numpy") as file:
            # A slice reads no data: it is the library's way to a tensor's type, bf16 included, without torch.
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return [_tensor(path, name, s.get_dtype(), s.get_shape()) for name, s in slices.items()]
    except OSError as fault:
        raise CheckpointError(f"{path} can't be read: {fault}", "give a file that can be read") from None
    except SafetensorError as fault:
        raise _refusal(path, str(fault)) from None


def _tensor(path: Path, name: str, dtype: str, shape: list[int]) -> TensorMeta:
    if dtype not in DTYPE_BITS:
        raise CheckpointError(
            f"{path}: tensor {_quoted(name)} is of type {dtype}, which is not known here",
            f"known: {', '.join(DTYPE_BITS)}",
        )
    return TensorMeta(name=name, dtype=dtype, shape=tuple(shape))


def _refusal(path: Path, fault: str) -> CheckpointError:
    """The library refused the file: what is wrong in the file's own figures, and with which tensor."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        claimed = int.from_bytes(prefix, "little")
        header = file.read(min(claimed, _MAX_EXPLAINED_BYTES))
    if (prefix + header).startswith(_LFS_POINTER):
        return CheckpointError(f"{path} is a git-lfs pointer, not the weights", "run `git lfs pull` there")
    if size < 8:
        reason = f"it holds {size} bytes, and a header's length alone takes 8"
    elif claimed > _MAX_HEADER_BYTES:
        reason = f"its header claims {claimed:,} bytes, over the format's limit of {_MAX_HEADER_BYTES:,}"
    elif claimed > size - 8:
        reason = f"its header claims {claimed:,} bytes, and {size - 8:,} follow"
    else:
        library_says = fault.removeprefix("Error while deserializing header: ")
        reason = _header_fault(header, size - 8 - claimed) or library_says
    return CheckpointError(f"{path} is not a sound safetensors file: {reason}", _FETCH_AGAIN)


class _Entry(BaseModel):
    """One tensor in a header's JSON."""

    dtype: str
    shape: tuple[NonNegativeInt, ...]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


def _header_fault(header: bytes, data_bytes: int) -> str | None:
    """The first tensor, in file order, that a refused header has wrong, and how; None if there is none."""
    try:
        content = json.loads(header.decode())
        raw = {name: entry for name, entry in content.items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError):
        return None  # not a JSON object: the library's own words are all there is to say
    entries: dict[str, _Entry] = {}
    for name, value in raw.items():
        if not isinstance(value, dict):
            return f"tensor {_quoted(name)} is described by {_quoted(value)}, which is no object"
        try:
            entries[name] = _Entry.model_validate(value)
        except ValidationError as fault:
            error = fault.errors()[0]
            return f"tensor {_quoted(name)}: {'.'.join(map(str, error['loc']))}: {error['msg']}"
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if problem := _entry_fault(entry, position, data_bytes):
            return f"tensor {_quoted(name)} {problem}"
        position = entry.data_offsets[1]
    if position != data_bytes:
        return f"its tensors end at byte {position:,} of the data, and {data_bytes:,} bytes are there"
    return None


def _entry_fault(entry: _Entry, position: int, data_bytes: int) -> str | None:
    """What is wrong with a tensor that has to start at `position`, where the one before it ends."""
    begin, end = entry.data_offsets
    if entry.dtype not in DTYPE_BITS:
        return f"is of type {_quoted(entry.dtype)}; known: {', '.join(DTYPE_BITS)}"
    if begin != position:
        return f"starts at byte {begin:,} of the data, where the one before ends at {position:,}"
    size = TensorMeta(name="", dtype=entry.dtype, shape=entry.shape).num_bytes
    if end - begin != size:
        return f"has {end - begin:,} bytes of data, and its shape and type make {size:,}"
    if end > data_bytes:
        return f"ends at byte {end:,} of the data, and {data_bytes:,} bytes are there: the file is cut off"
    return None


# --- the index of a sharded checkpoint ----------------------------------------------------------------------


def _open_sharded(folder: Path) -> Checkpoint:
    """The index lists each tensor of its shards, in the right one, nothing else, and their bytes in total."""
    index = folder / INDEX
    weight_map, total_size = _read_index(index)
    checkpoint = _open_files(folder, sorted({folder / shard for shard in weight_map.values()}))
    files = checkpoint.files
    for name, shard in weight_map.items():
        if files.get(name) != folder / shard:
            raise CheckpointError(f"{index}: {shard} has no tensor {_quoted(name)}", _FETCH_ALL_AGAIN)
    for name, file in files.items():
        if name not in weight_map:
            raise CheckpointError(f"{index} lists no tensor {_quoted(name)}, and {file} has it", _FETCH_ALL_AGAIN)
    if total_size is not None and total_size != checkpoint.total_bytes:
        raise CheckpointError(
            f"{index}: total_size is {_quoted(total_size)}; the shards hold {checkpoint.total_bytes} bytes",
            f"{_FETCH_ALL_AGAIN}, or take total_size out if the shards are known to be whole",
        )
    return checkpoint


def _read_index(path: Path) -> tuple[dict[str, str], Any]:
    """(tensor name -> shard name, metadata.total_size as it stands there or None)."""
    size = path.stat().st_size
    if size > _MAX_INDEX_BYTES:
        raise CheckpointError(f"{path} holds {size:,} bytes", f"at most {_MAX_INDEX_BYTES:,} are read")
    try:
        content = json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{path} is not JSON in UTF-8: {_quoted(str(fault))}", _FETCH_AGAIN) from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{path} has no object `weight_map`, tensor name to shard", _FETCH_AGAIN)
    for name, shard in weight_map.items():
        if why := _shard_name_fault(shard):
            raise CheckpointError(f"{path}: tensor {_quoted(name)} lies in {_quoted(shard)}: {why}", _FETCH_AGAIN)
    metadata = content.get("metadata")
    return weight_map, metadata.get("total_size") if isinstance(metadata, dict) else None


def _shard_name_fault(shard: object) -> str | None:
    """An index is somebody else's file: it must not make us open one outside its folder, or of another kind.

    The name is judged, not where it leads: Hugging Face's cache is made of links that lead out of the folder.
    """
    if not isinstance(shard, str) or not shard.endswith(".safetensors"):
        return "only .safetensors files are opened"
    if len(shard) > 255 or not shard.isprintable():
        return "no plain file name"
    if PurePosixPath(shard).is_absolute() or ".." in PurePosixPath(shard).parts:
        return "that is outside the folder"
    return None


def _no_weights(folder: Path) -> CheckpointError:
    """Why there is nothing to open here."""
    if not folder.is_dir():
        return CheckpointError(f"{folder} is not a folder", "give the folder of config.json and the weights")
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles:
        return CheckpointError(
            f"{folder} holds pickled weights ({pickles[0]}), which can run code when opened, and are not",
            "if you trust them, convert: transformers' from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)",
        )
    return CheckpointError(f"{folder} has neither {SINGLE} nor {INDEX}", "fetch the weights as safetensors")


def _quoted(value: object) -> str:
    """Text of a file's making for a message: on one line, and not a page long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:150]}...{text[-40:]}"
