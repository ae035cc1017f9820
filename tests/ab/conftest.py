"""Tiny models, an arena and a probe of their size, and planted backends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_ab import ARENA_BYTES, HF, HYBRID

from harness.backends.base import Support
from harness.backends.registry import linear_backend, linear_backends


def set_wait(monkeypatch: pytest.MonkeyPatch, waited_s: float) -> None:
    """Neighbours that take so much of every second, whatever else runs on the machine."""
    from harness.ab import ledger
    from harness.specs.event import ContentionEvent, CpuWait

    class Books:
        def open(self) -> None:
            pass

        def closed(self, repeat: int) -> ContentionEvent:
            wait = CpuWait(queued_s=waited_s, others_s=waited_s, stolen_s=0.0)
            return ContentionEvent(repeat=repeat, wall_s=1.0, wait=wait)

    monkeypatch.setattr(ledger, "WaitBooks", Books)


@pytest.fixture
def neighbours(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    """They hold our cores for a tenth of the time."""
    set_wait(monkeypatch, 0.1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena of a few weights and a probe of a megabyte."""
    pytest.importorskip("torch")
    from harness.ab import compare
    from harness.ab.operands import arena
    from harness.specs.run import ProbeConfig

    monkeypatch.setattr(arena, "ROTATION_CACHES", 0)
    monkeypatch.setattr(arena, "MIN_ROTATION_BYTES", ARENA_BYTES)
    set_wait(monkeypatch, 0.0)
    config = ProbeConfig(buffer_bytes=1 << 20, survey_s=0.05, reading_s=0.001)
    monkeypatch.setattr(compare, "ProbeConfig", lambda **_: config)


@pytest.fixture
def model(tmp_path: Path, small: None) -> Path:
    """A dense model."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HF))
    return path


@pytest.fixture
def hybrid(tmp_path: Path, small: None) -> Path:
    """A model of gated delta rule and attention."""
    path = tmp_path / "hybrid" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(HYBRID))
    return path


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers a linear backend for one test: its launch is launch(x, weight, bias, out), more is what the test gives
    as attributes."""
    linear_backends.all()  # so that ours are there before
    monkeypatch.setattr(linear_backends, "_backends", dict(linear_backends._backends))

    def add(name: str, launch: Callable[..., None], **attributes: Any) -> None:
        class Planted:
            """Planted."""

            contest_legal = True

            def __init__(self, executor: Any, **parameters: int) -> None:
                self.parameters = parameters

            @staticmethod
            def supports(problem: Any, device: Any) -> Support:
                return Support.yes()

            def prepare(self, weight: Any, bias: Any, problem: Any) -> Any:
                return weight, bias

            def read_bytes(self, packed: Any, m: int) -> int:
                return int(packed[0].nbytes)

            def bind(self, x: Any, packed: Any, out: Any) -> Any:
                return lambda: launch(x, *packed, out, **self.parameters)

        for key, value in attributes.items():
            setattr(Planted, key, value)
        linear_backend(name)(Planted)

    return add
