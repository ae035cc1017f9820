"""GGUF conversions that are refused or cut short: by name, and leaving no folder behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import TOKENS, VOCAB, make_weights, write_gguf
from numpy.typing import NDArray

from harness.checkpoint import SINGLE, open_checkpoint
from harness.errors import CheckpointError, ConfigError, UnavailableError
from harness.gguf_import import convert_gguf


def with_weight(name: str, values: NDArray[np.float32] | None) -> dict[str, Any]:
    weights = {**make_weights(), name: values}
    return {"weights": {key: value for key, value in weights.items() if value is not None}}


ZEROS = np.zeros((64, 64), np.float32)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "qwen2"}, "'qwen2'"),
    "tensor unknown": (with_weight("blk.0.ffn_gate_exps.weight", ZEROS), "'blk.0.ffn_gate_exps.weight'"),
    "bias": (with_weight("blk.0.attn_q.bias", ZEROS[0]), "'blk.0.attn_q.bias'"),
    "layer too many": (with_weight("blk.2.attn_q.weight", ZEROS), "blk.2.attn_q.weight"),
    "tensor missing": (with_weight("blk.1.ffn_up.weight", None), "model.layers.1.mlp.up_proj.weight"),
    "wrong shape": (with_weight("blk.1.ffn_up.weight", ZEROS), "blk.1.ffn_up.weight is (64, 64)"),
    "not finite": (with_weight("blk.0.attn_q.weight", ZEROS + np.float32(np.nan)), "blk.0.attn_q.weight"),
    "key unknown": ({"keys": {"llama.expert_count": 8}}, "llama.expert_count is 8"),
    "scaled rotary": ({"keys": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type is 'yarn'"),
    "other head width": ({"keys": {"llama.attention.key_length": 32}}, "llama.attention.key_length is 32"),
    "hidden size missing": ({"keys": {"llama.embedding_length": None}}, "hidden_size is missing"),
    "other tokenizer": ({"keys": {"tokenizer.ggml.model": "llama"}}, "tokenizer.ggml.model is 'llama'"),
    "other pre-tokenizer": ({"keys": {"tokenizer.ggml.pre": "qwen2"}}, "tokenizer.ggml.pre is 'qwen2'"),
    "start token added": ({"keys": {"tokenizer.ggml.add_bos_token": True}}, "add_bos_token"),
    "merge of unknown": ({"keys": {"tokenizer.ggml.merges": ["t h", "q q"]}}, "merge 'q q'"),
    "token twice": (
        {"keys": {"tokenizer.ggml.tokens": [*TOKENS[:-1], "a"]}},
        f"{VOCAB - 1} of them distinct",
    ),
    "no tokens": ({"keys": {"tokenizer.ggml.tokens": None}}, "tokenizer.ggml.tokens is missing"),
    "types too few": ({"keys": {"tokenizer.ggml.token_type": [1]}}, "tokenizer.ggml.token_type: 1"),
    "type unknown": ({"keys": {"tokenizer.ggml.token_type": [4] * VOCAB}}, "kinds {4}"),
    "end token out of range": ({"keys": {"tokenizer.ggml.eos_token_id": 10**6}}, "eos_token_id is 1000000"),
}


def assert_leaves_nothing(make: Callable[[Path], None], kind: type[BaseException], folder: Path) -> Any:
    with pytest.raises(kind) as caught:
        make(folder)
    assert not folder.exists()
    assert not folder.parent.exists() or list(folder.parent.iterdir()) == []
    return caught.value


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, case: str) -> None:
    changes, expected = REFUSED[case]
    path = write_gguf(tmp_path / "tiny.gguf", **changes)
    error = assert_leaves_nothing(lambda folder: convert_gguf(path, folder), ConfigError, tmp_path / "out" / "tiny")
    assert str(path) in error.what and expected in error.what and "\n" not in error.what


def test_cut_off_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    for size in np.linspace(0, path.stat().st_size - 1, 60, dtype=int)[::-1]:
        os.truncate(path, size)
        error = assert_leaves_nothing(
            lambda folder: convert_gguf(path, folder), CheckpointError, tmp_path / "out" / "tiny"
        )
        assert str(path) in error.what


def test_missing_gguf(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.gguf"):
        convert_gguf(tmp_path / "nowhere.gguf", tmp_path / "tiny")


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    path, folder = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "mine"
    folder.mkdir()
    (folder / SINGLE).write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        convert_gguf(path, folder)
    assert [file.read_text() for file in folder.iterdir()] == ["mine"]


def test_interrupted_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path) -> None:
        assert (folder / SINGLE).exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.gguf_import.convert.open_checkpoint", interrupt)
    path = write_gguf(tmp_path / "tiny.gguf")
    assert_leaves_nothing(lambda folder: convert_gguf(path, folder), KeyboardInterrupt, tmp_path / "out" / "tiny")


KILLED = """
import os, signal, sys
from pathlib import Path
from harness.gguf_import import convert
convert.open_checkpoint = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
convert.convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_killed_conversion(tmp_path: Path) -> None:
    """Nothing under the model's name; and what was left beside it does not hinder the next attempt."""
    path, folder = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out" / "tiny"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(folder)])
    assert done.returncode == -signal.SIGKILL
    assert not folder.exists() and [entry.name[:6] for entry in folder.parent.iterdir()] == [".tiny."]
    convert_gguf(path, folder)
    assert open_checkpoint(folder).tensors


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnavailableError, match=r"gguf is not installed.*\[gguf\]"):
        convert_gguf(path, tmp_path / "tiny")
