"""Compiled for cards that are not here: needs Triton and torch, and not Triton's interpreter."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [package for package in ("torch", "triton") if importlib.util.find_spec(package) is None]
    why = f"no {' and no '.join(missing)} here" if missing else None
    if os.environ.get("TRITON_INTERPRET") == "1":
        why = "TRITON_INTERPRET=1: the interpreter compiles nothing"
    for item in items:
        if why and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def _triton_cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Everything is compiled anew, and nobody's own cache is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield
