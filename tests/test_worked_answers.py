"""The page of worked answers is what its generator writes, and its sentences hold for its numbers."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import harness

ROOT = Path(harness.__file__).parent.parent
GENERATOR = ROOT / "scripts/make_worked_answers.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_make_worked_answers", GENERATOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generator: ModuleType) -> dict[str, str]:
    return {language: generator.worked_answers(language) for language in generator.PAGES}


def test_the_pages_are_the_generators(generator: ModuleType, pages: dict[str, str]) -> None:
    for language, name in generator.PAGES.items():
        stored = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert stored == pages[language], f"run python scripts/make_worked_answers.py: docs/{name} is not of this code"


def test_both_languages_use_the_same_figures(generator: ModuleType) -> None:
    """But for the unit in which a language counts parameters."""
    fields = [set(re.findall(r"\{([^}]*)\}", path.read_text(encoding="utf-8"))) for path in generator.TEXTS.iterdir()]
    assert len(fields) == 2
    assert fields[0] ^ fields[1] <= {"alone[parameters]", "alone[parameters_yi]"}


def test_the_first_answer_by_hand(pages: dict[str, str]) -> None:
    """25,704,048,640 B over 2 TB/s; with 1,025 positions of 819,200 B and a row of 10,240 B."""
    assert f"{25_704_048_640 / 2e9:.3f}" == "12.852"
    assert f"{(25_704_048_640 + 1025 * 819_200 + 10_240) / 2e9:.3f}" == "13.272"
    for page in pages.values():
        assert "12.852 ms" in page
        assert "| 13.272 ms | 1.659 ms |" in page


def test_what_the_sentences_say_is_so(generator: ModuleType) -> None:
    """Prose does not recompute itself."""
    plan, model, device = generator._plan, generator.THIRTEEN_B, generator.ROUND_DEVICE
    alone = {batch: plan(model, device, context=1, batch=batch) for batch in (1, 64, 256)}
    assert alone[64].floor_s < 1.05 * alone[1].floor_s
    assert alone[256].floor_s > 1.5 * alone[1].floor_s
    assert alone[256].bound == "compute"
    cached = plan(model, device, context=generator.CONTEXT)
    assert cached.largest_batch_memory_bound_reason.startswith("memory-bound at any batch")
    eight = plan(model, device, context=generator.CONTEXT, tensor_parallel=8)
    assert eight.collectives_floor_s < 0.01 * eight.floor_s
    assert 7.9 < cached.floor_s / eight.floor_s < 8
    assert generator._checking(16).bound == "memory"
    busy = plan(generator.resolve_model("qwen3-8b"), generator.load_device_spec("h100"), context=generator.CONTEXT)
    assert busy.compute_floor_s < 0.01 * busy.floor_s


def test_remedies_come_in_the_order_of_their_effect(pages: dict[str, str]) -> None:
    for page in pages.values():
        times = [float(times) for times in re.findall(r"ms \| (0\.\d{3}) \| (?:yes|no|是|否) \|", page)]
        assert len(times) == 7
        assert times == sorted(times)
