"""docs/backends.md, in both languages: its code is the repository's and runs, and what it names is there."""

import re
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

import harness
from harness.backends import registry
from harness.cli.main import app
from harness.specs.ab import AbRow
from harness.specs.run import NativeEngine

ROOT = Path(harness.__file__).parent.parent
DOCS = [ROOT / "docs" / name for name in ("backends.md", "backends.zh-CN.md")]
REGISTRIES = (registry.linear_backends, registry.attention_backends, registry.linear_attention_backends)

each_language = pytest.mark.parametrize("doc", DOCS, ids=lambda path: path.name)


def blocks(doc: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", doc.read_text(), re.DOTALL)


def test_both_languages_show_the_same_code_and_commands() -> None:
    english, chinese = ([*blocks(doc, "python"), *blocks(doc, "toml"), *commands(doc)] for doc in DOCS)
    assert english == chinese and len(english) == 5


def squeezed(code: str) -> str:
    """Without indentation: a method that stands alone has none."""
    return " ".join(code.split())


def commands(doc: Path) -> list[str]:
    return re.findall(r"^    harness (.*)", doc.read_text(), re.MULTILINE)


@each_language
def test_the_example_is_the_backend_itself(doc: Path) -> None:
    source = (ROOT / "harness/backends/attention/flash_attn.py").read_text()
    *parts, _proof = blocks(doc, "python")
    assert len(parts) == 2 and all(squeezed(part) in squeezed(source) for part in parts)


@pytest.mark.torch
@each_language
def test_the_proof_runs(doc: Path, stand_ins: Path) -> None:
    exec(blocks(doc, "python")[-1], {})
    assert Path(sys.modules["flash_attn"].__file__ or "").parent == stand_ins


@each_language
def test_the_entry_point_is_one_that_is_looked_up(doc: Path) -> None:
    (toml,) = blocks(doc, "toml")
    groups = [f"harness.{found._op}_backends" for found in REGISTRIES]
    assert re.findall(r'entry-points\."(.*?)"', toml) == [groups[1]]
    (decorator,) = re.findall(r"@(\w+)\(", toml)
    assert getattr(registry, decorator).__self__ is registry.attention_backends


@each_language
def test_the_commands_and_their_options_exist(doc: Path) -> None:
    for command in commands(doc):
        words = command.split()
        shown = CliRunner().invoke(app, [*words[:2], "--help"], env={"COLUMNS": "200"}).stdout
        options = [word for word in words if word.startswith("--")]
        assert options and all(option in shown for option in options)


@each_language
def test_what_it_names_is_there(doc: Path) -> None:
    named = set(re.findall(r"`([^`\n]+)`", doc.read_text()))
    paths = {name for name in named if "/" in name}
    assert len(paths) >= 4 and all((ROOT / path).exists() for path in paths)
    statuses = set(get_args(get_type_hints(AbRow)["status"]))
    assert {"ok", "incorrect", "undeclared-memory"} <= statuses <= named
    assert "prefill_attention" in named and "prefill_attention" in NativeEngine.model_fields


@pytest.mark.torch
@each_language
def test_its_table_lists_registered_backends(doc: Path) -> None:
    names = re.findall(r"^\| `([a-z-]+)` \|", doc.read_text(), re.MULTILINE)
    assert names == ["flash-attn", "flashinfer", "torch-tuned", "vllm-skinny", "onednn", "fla"]
    assert set(names) <= {name for found in REGISTRIES for name in found.all()}
