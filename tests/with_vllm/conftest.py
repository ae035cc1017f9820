"""Tests with vLLM itself, in its own environment (`make tests WITH=vllm`). Not in a folder `vllm`, which would be found
as the package."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_vllm import save_checkpoint

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


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """saved(case, dtype, **changes): a random checkpoint, written once a session."""
    made: dict[Any, Path] = {}

    def save(case: str, dtype: str = "float32", **changes: Any) -> Path:
        key = case, dtype, *sorted(changes.items())
        if key not in made:
            made[key] = save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model", case, dtype, **changes)
        return made[key]

    return save
