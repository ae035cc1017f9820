"""What is loaded when: the help is light, everything but the leaves lives without torch, and `kernels` is not ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import harness

ROOT = Path(harness.__file__).parent


def loaded_after(code: str, *path: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_environment(*path)
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def _environment(*path: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def test_help_loads_nothing_heavy() -> None:
    loaded = loaded_after(
        """
import sys
from harness.cli.main import app
sys.argv = ["harness", "--help"]
try:
    app()
except SystemExit:
    pass
"""
    )
    assert "typer" in loaded
    assert not loaded & {"torch", "vllm", "triton", "pandas", "numpy", "scipy", "yaml", "safetensors", "transformers"}


BLOCKED = """
import sys, importlib, pkgutil
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'vllm', 'triton', 'transformers'):
            raise ImportError('blocked: ' + name)
sys.meta_path.insert(0, Block())
import harness
leaves = (
    'harness.engines.native', 'harness.backends.linear.', 'harness.backends.attention.',
    'harness.backends.linear_attention.', 'harness.ab.operands.', 'harness.engines.vllm_inproc.engine',
    'harness.engines.vllm_inproc.resolved', 'harness.vllm_plugin.layers', 'harness.vllm_plugin.op',
    'harness.vllm_plugin.session', 'harness.vllm_plugin.linear', 'harness.vllm_plugin.attention',
    'harness.vllm_plugin.cpu_attention', 'harness.vllm_plugin.attention_problem',
    'harness.vllm_plugin.counts', 'harness.vllm_plugin.machine', 'harness.vllm_plugin.moves',
    'harness.vllm_plugin.gpu_attention', 'harness.vllm_plugin.delta',
)
for info in pkgutil.walk_packages(harness.__path__, 'harness.', onerror=lambda name: None):
    if not info.name.startswith(leaves):
        importlib.import_module(info.name)
"""


def test_everything_but_the_leaves_imports_without_torch() -> None:
    assert "harness" in loaded_after(BLOCKED)


def test_a_blocked_leaf_does_fail() -> None:
    """The block works: a leaf that needs torch can't be imported behind it."""
    code = BLOCKED + "\ntry:\n    import harness.engines.native.rope\nexcept ImportError:\n    import wave\n"
    assert "wave" in loaded_after(code)


def test_our_kernels_folder_is_no_package(tmp_path: Path) -> None:
    """Hugging Face's `kernels` is looked up by name: with the repository root first on the path it must win."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("WHOSE = 'theirs'\n")
    code = "import kernels\nassert kernels.WHOSE == 'theirs'"
    loaded_after(code, str(ROOT.parent), str(tmp_path))


def test_no_kernels_package_is_found_without_theirs() -> None:
    """What transformers asks: find_spec and a distribution's version. A namespace package has no loader file."""
    code = """
import importlib.util, importlib.metadata
spec = importlib.util.find_spec("kernels")
assert spec is None or spec.origin is None, spec
try:
    importlib.metadata.version("kernels")
except importlib.metadata.PackageNotFoundError:
    import wave
"""
    assert "wave" in loaded_after(code, str(ROOT.parent))
    assert not list((ROOT.parent / "kernels").rglob("__init__.py"))
