"""Requests whose prompt is not computed: the steps behind it read as much as real ones would."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from native_engines import ROUTES, opened, tiny_config  # noqa: E402

from harness.specs.request import Request  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

PROMPT = (5, 90, 17, 3, 64, 127, 8, 44, 101)
each_route = pytest.mark.parametrize("route", ROUTES)


def skipped(batch: int = 1, output_tokens: int = 6) -> Request:
    return Request(None, (PROMPT,) * batch, output_tokens, ignore_eos=True, skip_prompt=True)


@each_route
@pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "qwen3.5"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_for_each_token_from_the_prompts_last_position_on(
    tmp_path: Path, case: str, route: str, batch: int
) -> None:
    with opened(tiny_config(tmp_path, case), route, batch=batch) as engine:
        contexts = []
        for chunk in engine.generate(skipped(batch)):
            assert len(chunk.token_ids) == batch
            contexts.append(engine._decoder.context.item())
        assert contexts == [9, 10, 11, 12, 13, 14], "the first step attends to the prompt's 9 positions"
        assert torch.isfinite(engine._decoder.logits[:batch]).all()


def first_logits(engine: Any, changed: int | None = None) -> "torch.Tensor":
    """Of the first step behind a prompt of 9 that was not computed, with one place of the caches changed."""
    decoder = engine._decoder
    with torch.inference_mode():
        decoder.pretend(1, len(PROMPT) - 1)
        if changed is not None:
            for layer in decoder._layers:
                layer.mixer._cache[0, :, :, changed] += 1.0
        decoder.token.fill_(3)
        decoder.decode_step().run()
        return decoder.logits[0].clone()


@each_route
def test_the_first_step_sees_exactly_the_positions_of_the_prompt(tmp_path: Path, route: str) -> None:
    """Eight that were never computed and its own: the seventh matters, its own is written anew, the ninth is not read.

    Each change is undone by what other steps do not touch: a place is changed in an engine of its own.
    """
    model = tiny_config(tmp_path, "qwen3")

    def logits(changed: int | None) -> "torch.Tensor":
        torch.manual_seed(3)
        with opened(model, route) as engine:
            return first_logits(engine, changed)

    untouched = logits(None)
    assert torch.equal(untouched, logits(None))
    assert not torch.allclose(untouched, logits(0), atol=1e-3)
    assert not torch.allclose(untouched, logits(7), atol=1e-3)
    assert torch.equal(untouched, logits(8)), "its own place is written before it is read"
    assert torch.equal(untouched, logits(9)), "beyond the prompt nothing is read"


def test_caches_and_states_hold_random_values(tmp_path: Path) -> None:
    with opened(tiny_config(tmp_path, "qwen3.5"), batch=2) as engine:
        decoder = engine._decoder
        decoder.pretend(1, 8)
        for layer in decoder._layers:
            kept = [layer.mixer._cache] if hasattr(layer.mixer, "_cache") else []
            states = getattr(layer.mixer, "_states", [])
            assert kept or states
            for cache in kept:
                assert cache[0].std().item() == pytest.approx(1.0, abs=0.1)
                assert (cache[0] != 0).all() and (cache[1] == 0).all()
            for tensors in ((state.conv, state.recurrent) for state in states[:1]):
                assert all((tensor != 0).all() for tensor in tensors)
            assert all((state.recurrent == 0).all() for state in states[1:])


@each_route
@pytest.mark.parametrize("case", ["qwen3", "qwen3.5"])
def test_what_a_skipped_prompt_left_is_gone_behind_a_computed_one(tmp_path: Path, case: str, route: str) -> None:
    model = tiny_config(tmp_path, case)
    real = Request(None, (PROMPT,), 6, ignore_eos=True)
    with opened(model, route) as engine:
        expected = [chunk.token_ids for chunk in engine.generate(real)]
        list(engine.generate(skipped()))
        assert [chunk.token_ids for chunk in engine.generate(real)] == expected
    with opened(model, route) as engine:
        list(engine.generate(skipped()))
        assert [chunk.token_ids for chunk in engine.generate(real)] == expected


def test_a_prompt_of_one_token_leaves_nothing_to_skip(tmp_path: Path) -> None:
    with opened(tiny_config(tmp_path, "qwen3"), prompt=1) as engine:
        one = ((5,),)
        skip = [c.token_ids for c in engine.generate(Request(None, one, 4, True, skip_prompt=True))]
        assert engine._decoder.context.item() == 4
        assert len(skip) == 4
