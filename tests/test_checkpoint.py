"""Sound checkpoints are read by headers alone; with pickles, nothing or random damage they are refused."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_files import HALVES, WHOLE_MAP, refusal, write_file, write_sharded
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.checkpoint import INDEX, SINGLE, Checkpoint, open_checkpoint
from harness.errors import CheckpointError
from harness.specs.tensor import TensorMeta

# --- sound --------------------------------------------------------------------------------------------------


def test_single_file(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "w.packed": {"dtype": "I32", "shape": [2, 1], "data_offsets": [0, 8]},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [8, 12]},
        "empty": {"dtype": "BF16", "shape": [0, 5], "data_offsets": [12, 12]},
        "eight": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [12, 15]},
        "bf16": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [15, 27]},
    }
    write_file(tmp_path / SINGLE, header, 27)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors == (
        TensorMeta(name="bf16", dtype="BF16", shape=(2, 3)),
        TensorMeta(name="eight", dtype="F8_E4M3", shape=(3,)),
        TensorMeta(name="empty", dtype="BF16", shape=(0, 5)),
        TensorMeta(name="scalar", dtype="F32", shape=()),
        TensorMeta(name="w.packed", dtype="I32", shape=(2, 1)),
    )
    assert checkpoint.total_bytes == 27
    assert set(checkpoint.files.values()) == {tmp_path / SINGLE}


@pytest.mark.parametrize("total_size", [18, 18.0, None], ids=["int", "float", "null"])
def test_sharded(tmp_path: Path, total_size: object) -> None:
    write_sharded(tmp_path, WHOLE_MAP, total_size)
    checkpoint = open_checkpoint(tmp_path)
    assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b"]
    assert checkpoint.files == {"a": tmp_path / "a.safetensors", "b": tmp_path / "b.safetensors"}
    assert checkpoint.total_bytes == 18


def test_sharded_without_metadata(tmp_path: Path) -> None:
    write_sharded(tmp_path, WHOLE_MAP)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": WHOLE_MAP}))
    assert open_checkpoint(tmp_path).total_bytes == 18


def test_two_spellings_of_a_shard_are_one_file(tmp_path: Path) -> None:
    write_sharded(tmp_path, {"a": "a.safetensors", "b": "b.safetensors", "c": "./a.safetensors"}, 22)
    header = {"a": HALVES, "c": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]}}
    write_file(tmp_path / "a.safetensors", header, 16)
    assert [tensor.name for tensor in open_checkpoint(tmp_path).tensors] == ["a", "c", "b"]


def test_unlisted_files_are_not_opened(tmp_path: Path) -> None:
    write_sharded(tmp_path, WHOLE_MAP)
    (tmp_path / "consolidated.safetensors").write_bytes(b"rubbish")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    assert open_checkpoint(tmp_path).total_bytes == 18


def test_single_file_wins_over_an_index(tmp_path: Path) -> None:
    write_sharded(tmp_path, {"a": "nowhere.safetensors"})
    write_file(tmp_path / SINGLE, {"a": HALVES}, 12)
    assert open_checkpoint(tmp_path).files == {"a": tmp_path / SINGLE}


def test_files_may_be_links_out_of_the_folder(tmp_path: Path) -> None:
    """As in Hugging Face's cache: snapshots/ links to blobs/."""
    snapshot, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    snapshot.mkdir()
    blobs.mkdir()
    write_sharded(blobs, WHOLE_MAP)
    for name in (INDEX, "a.safetensors", "b.safetensors"):
        (snapshot / name).symlink_to(blobs / name)
    assert open_checkpoint(snapshot).total_bytes == 18


# --- nothing to open ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    """The file would leave a trace if anything unpickled it."""
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(f"cos\nsystem\n(S'touch {trace}'\ntR.".encode())
    error = refusal(tmp_path)
    assert name in error.what and "save_pretrained" in error.mend
    assert not trace.exists()


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert SINGLE in refusal(tmp_path).what
    assert "not a folder" in refusal(tmp_path / "nowhere").what
    assert "not a folder" in refusal(tmp_path / "config.json").what


def test_torch_is_not_needed(tmp_path: Path) -> None:
    """bf16 included, which numpy has no type for."""
    write_file(tmp_path / SINGLE, {"a": HALVES}, 12)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from harness.checkpoint import open_checkpoint\n"
        "print(open_checkpoint(Path(sys.argv[1])).tensors[0].dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "BF16\n"


# --- random damage ------------------------------------------------------------------------------------------

SOUND_HEADER = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "a": HALVES,
        "b": {"dtype": "I32", "shape": [1], "data_offsets": [12, 16]},
        "c": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [16, 20]},
    }
).encode()
SOUND_FILE = struct.pack("<Q", len(SOUND_HEADER)) + SOUND_HEADER + bytes(20)


def assert_consistent(checkpoint: Checkpoint) -> None:
    assert checkpoint.total_bytes == 20
    assert [tensor.name for tensor in checkpoint.tensors] == sorted(checkpoint.files)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property: each overwrites the one before."""
    return tmp_path_factory.mktemp("examples")


@settings(derandomize=True, deadline=None, max_examples=1000)
@given(
    flips=st.lists(st.tuples(st.integers(0, 8 + len(SOUND_HEADER) - 1), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_flipped_bytes(scratch: Path, flips: list[tuple[int, int]]) -> None:
    """Whatever bytes of length and header change: a checkpoint of the data's size, or a refusal."""
    damaged = bytearray(SOUND_FILE)
    for position, mask in flips:
        damaged[position] ^= mask
    (scratch / SINGLE).write_bytes(damaged)
    try:
        checkpoint = open_checkpoint(scratch)
    except CheckpointError as fault:
        assert str(scratch / SINGLE) in fault.what and "\n" not in fault.what
    else:
        assert_consistent(checkpoint)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["metadata", "weight_map", "total_size", "a", "dtype", "shape", "data_offsets"]),
                inner,
            )
        ),
        max_leaves=12,
    ),
    name=st.sampled_from([SINGLE, INDEX]),
)
def test_any_json(scratch: Path, value: object, name: str) -> None:
    """Header or index of any shape whatever: a checkpoint or a refusal, never another exception."""
    text = json.dumps(value).encode()
    (scratch / SINGLE).unlink(missing_ok=True)
    (scratch / name).write_bytes(struct.pack("<Q", len(text)) + text if name == SINGLE else text)
    try:
        open_checkpoint(scratch)
    except CheckpointError as fault:
        assert "\n" not in fault.what
