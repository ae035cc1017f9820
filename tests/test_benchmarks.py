"""Scripts of benchmarks/ run by hand alone, so an import that breaks would be noticed by its next user only."""

import importlib.util
import sys
from pathlib import Path

import pytest

OPTIONAL = ("torch", "vllm", "transformers", "llama_cpp")
SCRIPTS = sorted(Path(__file__).parents[1].joinpath("benchmarks").rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_script_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)
    spec = importlib.util.spec_from_file_location(f"imported_{script.stem}", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        if missing.name in OPTIONAL:
            pytest.skip(f"needs {missing.name}")
        raise


@pytest.mark.torch
def test_a_tables_worth_ends_with_a_verdict() -> None:
    pytest.importorskip("torch")
    from table_worth import verdict

    shown, near, far, wild = [0.10, 0.11, 0.10], [0.10, 0.12, 0.11], [0.30, 0.31, 0.31], [0.9, -0.7, 0.8]
    assert "save 10.3%, predicted were 11.0%: the two agree within 5%" in verdict(near, shown)
    assert "the two do not agree within 5%" in verdict(far, shown)
    assert "too few rounds to say" in verdict(wild, shown)
