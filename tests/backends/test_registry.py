"""Names, discovery and choice of backends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.backends.base import LinearBackend, Support
from harness.backends.registry import Registry, attention_backends, linear_backends
from harness.errors import ConfigError, UnavailableError
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem

DEVICE = DeviceInfo(kind="cpu", name="a test's CPU")


class Toy:
    """What a registry asks of every backend."""

    contest_legal = True

    @staticmethod
    def supports(problem, device):
        return Support.yes()

    def read_bytes(self, packed, m):
        return 0

    def bind(self, x, packed, out):
        return lambda: None


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One backend for m = 1 and one for any m, and no discovery."""
    monkeypatch.setattr(Registry, "_discover", lambda self: None)
    registry = Registry("toy", LinearBackend, preference=("not-installed", "one-row", "any"))

    @registry.register("any")
    class Any(Toy):
        @staticmethod
        def supports(problem, device):
            return Support.yes() if problem.n > 1 else Support.no("n is 1", "make it larger")

    @registry.register("one-row")
    class OneRow(Toy):
        @staticmethod
        def supports(problem, device):
            return Support.yes() if problem.m == 1 else Support.no(f"m is {problem.m}", "use any")

    @registry.register("last-resort")
    class LastResort(Toy):
        pass

    return registry


def problem(m=1, n=8) -> LinearProblem:
    return LinearProblem(m=m, n=n, k=8, dtype="BF16")


def test_the_decorator_names_the_class_and_returns_it(toys):
    class Another(Toy):
        pass

    assert toys.register("another")(Another) is Another
    assert Another.name == "another"
    assert list(toys.all()) == ["another", "any", "last-resort", "one-row"]


@pytest.mark.parametrize("name", ["any", "auto"])
def test_a_taken_name_is_refused(toys, name):
    before = toys.all()
    with pytest.raises(ConfigError, match=f"wants to be called '{name}'"):
        toys.register(name)(type("Second", (Toy,), {}))
    assert toys.all() == before


def test_a_class_that_is_no_backend_is_refused(toys):
    with pytest.raises(ConfigError, match="'half' lacks read_bytes, bind"):
        toys.register("half")(type("Half", (), {"contest_legal": True, "supports": Toy.supports}))
    assert "half" not in toys.all()


def test_a_class_of_its_own_gets_the_defaults_that_it_lacks(toys: Registry) -> None:
    found = toys.get("any")
    assert not found.counts_calls and not found.uses_pool and found.note == "" and found.tuning(None, None) == ()
    made = found()
    assert made.read_bytes(None, 1) == 0 and made.kept_bytes(None) == 0, "what it has stays its own"


def test_an_unknown_name_lists_the_known(toys):
    with pytest.raises(ConfigError, match=r"'ani'.*known: any, last-resort, one-row"):
        toys.get("ani")


def test_auto_takes_the_first_preferred_that_can(toys):
    assert toys.choose("auto", problem(m=1), DEVICE).backend.name == "one-row"
    choice = toys.choose("auto", problem(m=2), DEVICE)
    assert (choice.backend.name, choice.fallback_from) == ("any", None)


def test_a_request_is_met(toys):
    choice = toys.choose("last-resort", problem(), DEVICE)
    assert (choice.backend.name, choice.fallback_from, choice.fallback_reason) == ("last-resort", None, None)


def test_a_fallback_says_what_was_asked_for_and_why_not(toys):
    choice = toys.choose("one-row", problem(m=2), DEVICE)
    assert choice.backend.name == "any"
    assert (choice.fallback_from, choice.fallback_reason) == ("one-row", "m is 2 (use any)")


@pytest.mark.parametrize("requested", ["auto", "any"])
def test_nobody_can(toys, requested):
    """`last-resort` could, but is not in the order: it must be asked for by name."""
    with pytest.raises(UnavailableError, match=r"one-row: m is 2 \(use any\); any: n is 1"):
        toys.choose(requested, problem(m=2, n=1), DEVICE)


@pytest.mark.torch
def test_the_backends_of_this_package():
    assert {"torch", "torch-mv", "cpu-gemv", "onednn"} <= set(linear_backends.all())
    assert {"torch-sdpa", "cpu-decode"} <= set(attention_backends.all())
    backends = {**linear_backends.all(), **attention_backends.all()}
    for name, backend in backends.items():
        assert backend.name == name and backend.__doc__
    assert [name for name, backend in backends.items() if not backend.contest_legal] == ["onednn"]


LIST = """
import json
from harness.backends.registry import linear_backends
from harness.errors import HarnessError
print(json.dumps([list(linear_backends.all()), linear_backends.unavailable()]))
"""


def listed(code: str = LIST, *paths: Path) -> list:
    """What a fresh interpreter prints, with `paths` on its module path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


BLOCK_TORCH = "import sys; sys.modules['torch'] = None\n"


def test_without_torch_the_reasons_are_told():
    names, unavailable = listed(BLOCK_TORCH + LIST)
    assert names == []
    assert "torch" in unavailable["harness.backends.linear.cpu_gemv"]


def test_without_torch_a_choice_says_so():
    code = """
from harness.backends.registry import linear_backends
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem
from harness.errors import UnavailableError
import json
try:
    problem = LinearProblem(m=1, n=1, k=1, dtype="F32")
    linear_backends.choose("auto", problem, DeviceInfo(kind="cpu", name="x"))
except UnavailableError as error:
    print(json.dumps(error.mend))
"""
    assert "torch_linear: ModuleNotFoundError" in listed(BLOCK_TORCH + code)


PLUGIN = """
from harness.backends.registry import linear_backend

@linear_backend({name!r})
class Plugin:
    "A third party's."
    contest_legal = True
    supports = read_bytes = bind = staticmethod(lambda *arguments: None)
"""


def test_plugins_come_by_entry_point_and_a_broken_one_breaks_nothing(tmp_path: Path):
    """As installed packages have them: a dist-info folder beside the modules."""
    (tmp_path / "good_plugin.py").write_text(PLUGIN.format(name="good"))
    (tmp_path / "greedy_plugin.py").write_text(PLUGIN.format(name="good"))
    (tmp_path / "broken_plugin.py").write_text("1 / 0")
    info = tmp_path / "plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
    modules = ("broken_plugin", "good_plugin", "greedy_plugin", "missing_plugin")
    points = "".join(f"{module} = {module}\n" for module in modules)
    (info / "entry_points.txt").write_text(f"[harness.linear_backends]\n{points}")
    names, unavailable = listed(BLOCK_TORCH + LIST, tmp_path)
    assert names == ["good"]
    reasons = {module: unavailable[module].partition(":")[0] for module in modules if module in unavailable}
    assert reasons == {
        "broken_plugin": "ZeroDivisionError",
        "greedy_plugin": "ConfigError",
        "missing_plugin": "ModuleNotFoundError",
    }
