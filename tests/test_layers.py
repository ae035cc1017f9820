"""Imports go down only, and heavy packages stay in their leaf modules: read from the syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness

ROOT = Path(harness.__file__).parent
HEAVY = {"torch", "vllm", "triton", "transformers"}
HEAVY_LEAVES = (
    "harness.engines.native.", "harness.backends.linear.", "harness.backends.attention.",
    "harness.backends.linear_attention.", "harness.ab.operands.", "harness.engines.vllm_inproc.engine",
    "harness.engines.vllm_inproc.resolved", "harness.vllm_plugin.layers", "harness.vllm_plugin.op",
    "harness.vllm_plugin.session", "harness.vllm_plugin.linear", "harness.vllm_plugin.attention",
    "harness.vllm_plugin.cpu_attention", "harness.vllm_plugin.attention_problem",
    "harness.vllm_plugin.counts", "harness.vllm_plugin.machine", "harness.vllm_plugin.moves",
    "harness.vllm_plugin.gpu_attention", "harness.vllm_plugin.delta",
)  # fmt: skip
LIGHT_ONLY = ("harness.cli.",)

# Longest prefix wins.
LAYER = {
    "harness": 0,
    "harness.specs": 0,
    "harness.errors": 0,
    "harness.units": 0,
    "harness.traffic": 0,
    "harness.roofline": 0,
    "harness.stats": 0,
    "harness.repeats": 0,
    "harness.roof": 0,
    "harness.facts": 0,
    "harness.figures": 0,
    "harness.verdict": 0,
    "harness.analysis": 0,
    "harness.run_warnings": 0,
    "harness.prefill": 0,
    "harness.batching": 0,
    "harness.split": 0,
    "harness.sweeps": 0,
    "harness.timeline": 0,
    "harness.resources": 1,
    "harness.config_io": 1,
    "harness.checkpoint": 1,
    "harness.models": 1,
    "harness.records": 1,
    "harness.environment": 1,
    "harness.exclusive": 1,
    "harness.kernel_build": 1,
    "harness.kernel_reference": 1,
    "harness.selection": 1,
    "harness.tunableop": 1,
    "harness.gpu_build": 1,
    "harness.cpu_pool": 1,
    "harness.triton_kernels": 1,
    "harness.absent_card": 1,
    "harness.triton_builds": 1,
    "harness.devices": 1,
    "harness.client": 1,
    "harness.server": 1,
    "harness.gguf_import": 1,
    "harness.traces": 1,
    "harness.backends": 2,
    "harness.openmp_pool": 1,
    "harness.probe": 2,
    "harness.vllm_plugin": 2,
    "harness.engines": 3,
    "harness.measure": 4,
    "harness.workload": 4,
    "harness.bench": 4,
    "harness.ab": 4,
    "harness.plan": 4,
    "harness.doctor": 4,
    "harness.prebuild": 4,
    "harness.profile": 4,
    "harness.report": 4,
    "harness.cli": 5,
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] in ("_kernels", "_configs"):
            continue
        name = ".".join(("harness", *path.relative_to(ROOT).with_suffix("").parts))
        yield name.removesuffix(".__init__"), ast.parse(path.read_text())


def layer(module: str) -> int:
    while module not in LAYER:
        module, _, rest = module.rpartition(".")
        assert rest, "a module without a layer"
        assert module != "harness", f"harness.{rest} has no layer: name one in this test and in CONTRIBUTING.md"
    return LAYER[module]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every import anywhere in the module, but those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node)


def module_level_imports(tree: ast.Module) -> Iterator[str]:
    """Imports that run when the module is imported: not those inside functions."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from imports(ast.Module(body=[node], type_ignores=[]))


MODULES = dict(modules())


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name: str) -> None:
    own = layer(name)
    for imported in imports(MODULES[name]):
        target = imported if imported in MODULES else imported.rpartition(".")[0]
        if target in MODULES and target != "harness":
            assert layer(target) <= own, f"{name} (layer {own}) imports {target} (layer {layer(target)})"


@pytest.mark.parametrize("name", MODULES)
def test_heavy_packages_stay_in_leaves(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in module_level_imports(MODULES[name])}
    if not name.startswith(HEAVY_LEAVES):
        assert not roots & HEAVY
    if name.startswith(LIGHT_ONLY):
        assert not roots & (HEAVY | {"numpy", "pandas", "scipy", "pydantic", "yaml"})


def test_pure_layer_needs_numpy_and_pydantic_at_most() -> None:
    allowed = {"numpy", "pydantic", "harness"}
    for name, tree in MODULES.items():
        if layer(name) == 0 and name != "harness":
            third_party = {
                root
                for root in (imported.partition(".")[0] for imported in module_level_imports(tree))
                if root not in allowed and root not in __import__("sys").stdlib_module_names
            }
            assert not third_party, f"{name}: {third_party}"


def test_the_walk_finds_a_planted_fault() -> None:
    tree = ast.parse("def f():\n    from harness.cli import main\n")
    assert "harness.cli" in set(imports(tree))
    assert "torch" in set(module_level_imports(ast.parse("try:\n    import torch\nexcept ImportError:\n    pass\n")))
    assert "torch" not in set(module_level_imports(ast.parse("def f():\n    import torch\n")))
