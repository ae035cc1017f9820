"""Tests with vLLM itself, in its own environment (`make tests WITH=vllm`). Not in a folder `vllm`, which would be found
as the package."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

STAND_INS = Path(__file__).parent / "stand_ins"


@pytest.fixture(scope="session", autouse=True)
def _torchvision() -> Iterator[None]:
    """vLLM also looks at models in processes of its own, which read PYTHONPATH."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STAND_INS))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(STAND_INS), os.environ.get("PYTHONPATH")))))
        yield
