"""Scripts of benchmarks/ run by hand alone, so an import that breaks would be noticed by its next user only."""

import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = ("torch", "vllm", "transformers", "llama_cpp", "gguf")
SCRIPTS = sorted(map(str, Path(__file__).parents[1].joinpath("benchmarks").rglob("*.py")))


IMPORT_ALL = """
import importlib.util, sys
for script in sys.argv[1:]:
    sys.path.insert(0, script.rpartition("/")[0])
    spec = importlib.util.spec_from_file_location("imported", script)
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except ModuleNotFoundError as missing:
        if missing.name not in OPTIONAL:
            raise
    print(script)
"""


def test_every_script_imports() -> None:
    """In a process of its own: some register backends."""
    code = IMPORT_ALL.replace("OPTIONAL", repr(OPTIONAL))
    done = subprocess.run([sys.executable, "-c", code, *SCRIPTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SCRIPTS and len(SCRIPTS) > 5


@pytest.mark.torch
def test_a_tables_worth_ends_with_a_verdict() -> None:
    pytest.importorskip("torch")
    from table_worth import verdict

    shown, near, far, wild = [0.10, 0.11, 0.10], [0.10, 0.12, 0.11], [0.30, 0.31, 0.31], [0.9, -0.7, 0.8]
    assert "save 10.3%, predicted were 11.0%: the two agree within 5%" in verdict(near, shown)
    assert "the two do not agree within 5%" in verdict(far, shown)
    assert "too few rounds to say" in verdict(wild, shown)
