"""What tests share: a cache of their own, kernels built once a session, skips for what is not here."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from compilers import command_for
from hypothesis import settings

from harness import gpu_build, kernel_build
from harness.cpu_pool import CpuPool
from harness.kernel_reference import kernel_reference as load_reference

# The same examples every time: a suite that fails one day in ten teaches nobody anything.
settings.register_profile("suite", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("suite")
if os.environ.get("TRITON_INTERPRET") != "1":
    # transformers, the engines' reference, takes fla's kernels wherever it finds them, and those want a card.
    sys.modules["fla"] = None  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        "torch": importlib.util.find_spec("torch") is None,
        "reference": importlib.util.find_spec("transformers") is None,
        "vllm": importlib.util.find_spec("vllm") is None,
    }
    for item in items:
        for marker, is_missing in missing.items():
            if is_missing and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"no {marker} here"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compiler"):
        command_for(gpu_build.HOST)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are built once a session, whoever asks, and nobody's own cache is read or written.

    A warning is an error, in every build: a library is found by its flags.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(kernel_build, "FLAGS", (*kernel_build.FLAGS, "-Werror"))
        patch.setitem(gpu_build._FLAGS, "host", (*gpu_build._FLAGS["host"], "-Werror"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _lock_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The measuring lock lies in the folder for temporary files: nobody's real measurement is waited for or held up."""
    folder = str(tmp_path_factory.mktemp("lock"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr("tempfile.tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_readings() -> Iterator[None]:
    """A run's readings of memory and of products, which no test's run looks at the rates of, take 2 to 4 s else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.probe.memory.PEAK_READING_S", 0.01)
        patch.setattr("harness.bench.SHORT_READING_S", 0.001)
        yield


@pytest.fixture
def empty_cache(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A cache of this test's own; returns the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "llm-decode-harness"


@pytest.fixture(scope="session")
def cpu_pool() -> Iterator[CpuPool]:
    """At most two threads, not all of a large machine's. Tests that use it are marked `compiler`."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    with CpuPool(cores) as pool:
        yield pool


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """flash_attn and flashinfer are here, and are ours; returns their folder."""
    folder = Path(__file__).parent / "backends" / "stand_ins"
    monkeypatch.syspath_prepend(str(folder))
    _forget("flash_attn", "flashinfer")
    yield folder
    _forget("flash_attn", "flashinfer")


def _forget(*packages: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def kernel_reference() -> Callable[[str], ModuleType]:
    """kernels/<op>/reference.py, by op."""
    return load_reference


@pytest.fixture
def any_share_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of a tiny model's step is Python depends on the machine, and how many calls there are does not: traces
    are believed here whatever the share."""
    monkeypatch.setattr("harness.timeline.complete.MIN_BUSY_FRAC", 0.0)
