"""Hostile and broken checkpoints: each really lies on disk, and is refused naming the file and the tensor."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import HALVES, WHOLE_MAP, Header, entry, refusal, write_file, write_raw, write_sharded

from harness.checkpoint import INDEX, SINGLE

# --- one broken file ----------------------------------------------------------------------------------------

BAD_TENSORS: dict[str, tuple[Header, int, str]] = {
    "type unknown to the format": ({"t.x": entry("WAT")}, 4, "'WAT'"),
    "type unknown here": ({"t.x": entry("C64", (1,), 0, 8)}, 8, "C64"),
    "type no text": ({"t.x": entry(5)}, 4, "dtype"),
    "length not shape x type": ({"t.x": entry(shape=(3,))}, 4, "make 6"),
    "overflowing shape": ({"t.x": entry(shape=(2**63, 4))}, 4, "make 73,786,976,294,838,206,464"),
    "negative dimension": ({"t.x": entry(shape=(-2,))}, 4, "shape"),
    "shape no list": ({"t.x": entry(shape="2")}, 4, "shape"),
    "offsets backwards": ({"t.x": entry(begin=4, end=0)}, 4, "starts at byte 4"),
    "three offsets": ({"t.x": {"dtype": "U8", "shape": [], "data_offsets": [0, 1, 2]}}, 1, "data_offsets"),
    "key missing": ({"t.x": {"dtype": "BF16", "shape": [2]}}, 4, "data_offsets"),
    "entry no object": ({"t.x": [1, 2]}, 4, "object"),
    "overlap": ({"a": entry(), "t.x": entry(begin=2, end=6)}, 6, "starts at byte 2"),
    "same place twice": ({"a": entry(), "t.x": entry()}, 4, "starts at byte 0"),
    "hole": ({"a": entry(), "t.x": entry(begin=6, end=10)}, 10, "starts at byte 6"),
    "out of range": ({"a": entry(), "t.x": entry(begin=4, end=8)}, 6, "ends at byte 8"),
    "half a byte": ({"t.x": entry("F4", (3,), 0, 2)}, 2, "t.x"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensor_is_named(tmp_path: Path, case: str) -> None:
    header, data_bytes, expected = BAD_TENSORS[case]
    write_file(tmp_path / SINGLE, header, data_bytes)
    error = refusal(tmp_path)
    assert str(tmp_path / SINGLE) in error.what
    assert "'t.x'" in error.what and expected in error.what


def test_data_after_the_last_tensor(tmp_path: Path) -> None:
    write_file(tmp_path / SINGLE, {"a": entry()}, 6)
    assert "end at byte 4 of the data, and 6 bytes are there" in refusal(tmp_path).what


def test_cut_off_file(tmp_path: Path) -> None:
    """A download that stopped: cut anywhere, it is refused and says where it is short."""
    path = tmp_path / SINGLE
    write_file(path, {"a": HALVES, "t.x": entry("F32", (4,), 12, 28)}, 28)
    whole = path.stat().st_size
    for size in reversed(range(whole)):
        os.truncate(path, size)
        error = refusal(tmp_path)
        assert str(path) in error.what
        if size >= whole - 16:
            assert "'t.x'" in error.what and f"{28 - whole + size} bytes are there" in error.what


BAD_HEADERS: dict[str, tuple[bytes, int | None, str]] = {
    "claims more than follows": (b"{}", 50_000_000, "claims 50,000,000 bytes, and 2 follow"),
    "claims more than the limit": (b"{}", 2**62, "over the format's limit"),
    "claims the largest number": (b"{}", 2**64 - 1, "over the format's limit"),
    "claims nothing": (b"{}", 0, "not a sound"),
    "invalid UTF-8": (b'{"a\xff":{}}', None, "UTF-8"),
    "no JSON": (b"\x00\x01\x02\x03", None, "invalid JSON"),
    "a list": (b"[1]", None, "invalid JSON"),
    "nested without end": (b'{"a":' * 200_000, None, "invalid JSON"),
    "metadata no text": (b'{"__metadata__":{"format":5}}', None, "invalid JSON"),
    "git-lfs pointer": (
        b"https://git-lfs.github.com/spec/v1\n",
        int.from_bytes(b"version ", "little"),
        "is a git-lfs pointer",
    ),
    "pickle": (b"\x04cos\nsystem\n", int.from_bytes(b"\x80\x02}q\x00(X\x01", "little"), "limit"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_bad_header(tmp_path: Path, case: str) -> None:
    header, claimed, expected = BAD_HEADERS[case]
    write_raw(tmp_path / SINGLE, header, claimed=claimed)
    error = refusal(tmp_path)
    assert str(tmp_path / SINGLE) in error.what and expected in error.what


@pytest.mark.parametrize("size", range(8))
def test_file_shorter_than_its_first_field(tmp_path: Path, size: int) -> None:
    (tmp_path / SINGLE).write_bytes(bytes(size))
    assert f"{SINGLE} is not a sound safetensors file: it holds {size} bytes" in refusal(tmp_path).what


def test_a_hostile_name_does_not_fill_the_screen(tmp_path: Path) -> None:
    write_file(tmp_path / SINGLE, {"\n\x1b[2J" + "x" * 1_000_000: entry("WAT")}, 4)
    error = refusal(tmp_path)
    assert "WAT" in error.what and "\x1b" not in error.what


# Measured in a process of its own, whose peak no earlier test has raised.
MEMORY_PROBE = """
import resource, sys
from pathlib import Path
from harness.checkpoint import open_checkpoint
from harness.errors import CheckpointError
def peak_mib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
(Path(sys.argv[1]) / "warm").mkdir()
for folder in (Path(sys.argv[1]) / "warm", *(Path(name) for name in sys.argv[2:])):
    try:
        open_checkpoint(folder)
    except CheckpointError as fault:
        if folder.name == "warm": import safetensors, numpy; before = peak_mib()
        else: print(fault.what)
print(peak_mib() - before)
"""


def test_memory_stays_small(tmp_path: Path) -> None:
    """Headers that claim all memory there is, in sparse files of 64 GB: refused before any of it is taken."""
    folders = []
    for number, claimed in enumerate((2**62, 60_000_000_000, 99_000_000)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_raw(folder / SINGLE, b"", claimed=claimed)
        os.truncate(folder / SINGLE, 64_000_000_000)
        folders.append(str(folder))
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / INDEX).touch()
    os.truncate(tmp_path / "index" / INDEX, 64_000_000_000)
    command = [sys.executable, "-c", MEMORY_PROBE, str(tmp_path), *folders, str(tmp_path / "index")]
    *refused, grown_mib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(refused) == 4
    assert float(grown_mib) < 150  # the header of 99 MB is within the format's limit, and the library maps it


# --- shards and index ---------------------------------------------------------------------------------------


def listed(weight_map: Any, total_size: Any = 18) -> Callable[[Path], None]:
    return lambda folder: write_sharded(folder, weight_map, total_size)


def index_of(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / INDEX).write_bytes(content)


def twice_held(folder: Path) -> None:
    write_sharded(folder, WHOLE_MAP, 30)
    header = {"b": entry("I8", (6,), 0, 6), "a": entry("BF16", (2, 3), 6, 18)}
    write_file(folder / "b.safetensors", header, 18)


def held_not_listed(folder: Path) -> None:
    write_sharded(folder, WHOLE_MAP, 22)
    header = {"b": entry("I8", (6,), 0, 6), "extra": entry("F32", (1,), 6, 10)}
    write_file(folder / "b.safetensors", header, 10)


def broken_shard(folder: Path) -> None:
    write_sharded(folder, WHOLE_MAP)
    os.truncate(folder / "b.safetensors", 70)


def shard_is_a_folder(folder: Path) -> None:
    write_sharded(folder, {**WHOLE_MAP, "c": "c.safetensors"})
    (folder / "c.safetensors").mkdir()


A, B = WHOLE_MAP["a"], WHOLE_MAP["b"]
BAD_INDEXES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "shard missing": (listed({**WHOLE_MAP, "c": "c.safetensors"}), ("c.safetensors is missing",)),
    "shard is a folder": (shard_is_a_folder, ("c.safetensors is missing",)),
    "shard broken": (broken_shard, ("b.safetensors", "'b'", "cut off")),
    "listed, not held": (listed({**WHOLE_MAP, "c": A}), (INDEX, "'c'", A)),
    "listed in another shard": (listed({"a": B, "b": A}), (INDEX, "'a'", B)),
    "held, not listed": (held_not_listed, (INDEX, "'extra'", B)),
    "held twice": (twice_held, ("'a'", A, B)),
    "total too large": (listed(WHOLE_MAP, 19), (INDEX, "19", "18 bytes")),
    "total too small": (listed(WHOLE_MAP, 12), (INDEX, "12", "18 bytes")),
    "total no number": (listed(WHOLE_MAP, "18"), (INDEX, "'18'", "18 bytes")),
    "total not finite": (listed(WHOLE_MAP, float("nan")), (INDEX, "nan", "18 bytes")),
    "shard above the folder": (listed({"a": "../a.safetensors"}), (INDEX, "'a'", "outside")),
    "shard above by a detour": (listed({"a": "x/../../a.safetensors"}), (INDEX, "'a'", "outside")),
    "shard of an absolute path": (listed({"a": "/etc/a.safetensors"}), (INDEX, "'a'", "outside")),
    "shard is a pickle": (listed({"a": "pytorch_model.bin"}), (INDEX, "'a'", "only .safetensors")),
    "shard no text": (listed({"a": 5}), (INDEX, "'a'", "only .safetensors")),
    "shard with control characters": (listed({"a": "a\n\0.safetensors"}), (INDEX, "'a'", "no plain")),
    "shard with half a surrogate": (listed({"a": "\ud800.safetensors"}), (INDEX, "'a'", "no plain")),
    "shard of an endless name": (listed({"a": "x" * 10**6 + ".safetensors"}), (INDEX, "'a'", "no plain")),
    "weight_map a list": (listed([["a", A]]), (INDEX, "weight_map")),
    "no weight_map": (index_of(b"{}"), (INDEX, "weight_map")),
    "index a list": (index_of(b"[]"), (INDEX, "weight_map")),
    "index empty": (index_of(b""), (INDEX, "JSON")),
    "index cut off": (index_of(b'{"weight_map": {"a": "a.safe'), (INDEX, "JSON")),
    "index not UTF-8": (index_of(b'{"weight_map": {"\xff": 1}}'), (INDEX, "UTF-8")),
    "index nested without end": (index_of(b"[" * 200_000), (INDEX, "JSON")),
    "index with an endless number": (index_of(b"1" * 10_000), (INDEX, "JSON")),
}


@pytest.mark.parametrize("case", BAD_INDEXES)
@pytest.mark.timeout(30)
def test_bad_index(tmp_path: Path, case: str) -> None:
    make, expected = BAD_INDEXES[case]
    make(tmp_path)
    error = refusal(tmp_path)
    assert str(tmp_path) in error.what
    for text in expected:
        assert text in error.what


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Opening one waits for ever where no signal reaches, so another process tries."""
    write_sharded(tmp_path, {**WHOLE_MAP, "c": "c.safetensors"})
    os.mkfifo(tmp_path / "c.safetensors")
    code = "import sys, pathlib, harness.checkpoint as c; c.open_checkpoint(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "c.safetensors is missing" in done.stderr
