"""Requests that are decoded together: each gets what it would get alone, and touches nothing of the others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from native_engines import ROUTES, opened, tiny_config  # noqa: E402

from harness.errors import ConfigError  # noqa: E402
from harness.specs.request import Request  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

PROMPTS = [[5, 90, 17, 3, 64, 127, 8, 44, 101], [2, 33, 70, 12, 119, 56, 23, 9, 61], [77, 4, 130, 61, 18, 99, 40, 1, 7]]
FORCED = [[88, 10, 3, 41, 19], [6, 14, 125, 2, 73], [31, 97, 54, 0, 111]]
"""Of each prompt: tokens that follow it whatever the model says."""
each_route = pytest.mark.parametrize("route", ROUTES)
each_case = pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "qwen3.5"])


def forced_logits(engine: Any, prompts: Sequence[Sequence[int]], forced: Sequence[Sequence[int]]) -> "torch.Tensor":
    """[1 + forced tokens, batch, vocab] after the prompts and after each forced token."""
    decoder, batch = engine._decoder, len(prompts)
    found = []
    with torch.inference_mode():
        decoder.prefill(prompts)
        found.append(decoder.logits[:batch].clone())
        for tokens in zip(*forced, strict=True):
            decoder.logits.fill_(float("nan"))
            decoder.token[:batch] = torch.tensor(tokens)
            decoder.decode_step(batch).run()
            found.append(decoder.logits[:batch].clone())
    return torch.stack(found)


@each_route
@each_case
def test_each_of_a_batch_has_the_logits_that_it_has_alone(tmp_path: Path, case: str, route: str) -> None:
    model = tiny_config(tmp_path, case)
    with opened(model, route, batch=3) as engine:
        together = forced_logits(engine, PROMPTS, FORCED)
    with opened(model, route) as engine:
        alone = [forced_logits(engine, [prompt], [forced]) for prompt, forced in zip(PROMPTS, FORCED, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), rtol=1e-4, atol=4e-5)
    assert not torch.allclose(together[:, 0], together[:, 1], atol=1e-2), "the three differ"


@each_route
@each_case
def test_a_batchs_tokens_are_those_of_each_prompt_alone(tmp_path: Path, case: str, route: str) -> None:
    model = tiny_config(tmp_path, case)
    prompts = tuple(map(tuple, PROMPTS))

    def tokens(engine: Any, *of: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [chunk.token_ids for chunk in engine.generate(Request(None, of, 8, ignore_eos=True))]

    with opened(model, route, batch=3) as engine:
        together = tokens(engine, *prompts)
        again = tokens(engine, *prompts)
        first_alone = tokens(engine, prompts[0])
    with opened(model, route) as engine:
        alone = [tokens(engine, prompt) for prompt in prompts]
    assert together == again, "what an earlier request left changes nothing"
    assert together == [sum(step, ()) for step in zip(*alone, strict=True)]
    assert first_alone == alone[0], "one request in an engine that has room for three"


def kept(engine: Any, request: int) -> list["torch.Tensor"]:
    """Copies of all that the layers keep of a request."""
    mixers = [layer.mixer for layer in engine._decoder._layers]
    tensors = [mixer._cache[request] for mixer in mixers if hasattr(mixer, "_cache")]
    states = [mixer._states[request] for mixer in mixers if hasattr(mixer, "_states")]
    tensors += [tensor for state in states for tensor in (state.conv, state.recurrent)]
    return [tensor.clone() for tensor in tensors]


@each_route
@each_case
def test_a_smaller_batch_leaves_the_caches_of_the_others_alone(tmp_path: Path, case: str, route: str) -> None:
    with opened(tiny_config(tmp_path, case), route, batch=3) as engine:
        forced_logits(engine, PROMPTS, FORCED)
        before = [kept(engine, request) for request in range(3)]
        assert all(tensor.abs().sum() > 0 for tensor in before[2])
        forced_logits(engine, [PROMPTS[2]], [FORCED[2]])
        after = [kept(engine, request) for request in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before[2], after[2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))


@each_case
def test_more_than_eight_requests_are_multiplied_by_torch(tmp_path: Path, case: str) -> None:
    """The kernel takes eight rows: larger steps fall back and say so, and nobody's tokens change."""
    prompts = tuple(tuple((7 * i + 3 * j) % 131 for j in range(9)) for i in range(11))
    model = tiny_config(tmp_path, case)
    with opened(model, "cpu", batch=11) as engine:
        chunks = list(engine.generate(Request(None, prompts, 5, ignore_eos=True)))
        rows = [op for op in engine.report().ops if op.op == "linear" and op.phase == "decode" and op.role == "lm_head"]
    assert {op.shape.split("x")[0]: (op.backend, op.fallback_from) for op in rows} == {
        "1": ("cpu-gemv", None), "11": ("torch", "cpu-gemv"),
    }  # fmt: skip
    with opened(model, "torch") as engine:
        for index in (0, 10):
            alone = list(engine.generate(Request(None, (prompts[index],), 5, ignore_eos=True)))
            assert [chunk.token_ids[index] for chunk in chunks] == [chunk.token_ids[0] for chunk in alone]


@pytest.mark.parametrize(("num_prompts", "prompt", "output_tokens"), [(3, 9, 4), (1, 60, 4), (2, 9, 40), (1, 9, 17)])
@pytest.mark.parametrize("skip", [False, True])
def test_what_the_caches_do_not_hold_is_refused(
    tmp_path: Path, num_prompts: int, prompt: int, output_tokens: int, skip: bool
) -> None:
    """Caches for two of 9 + 16 positions: the instrumented pass takes 16 steps."""
    with opened(tiny_config(tmp_path, "qwen3"), batch=2) as engine:
        asked = Request(None, ((5,) * prompt,) * num_prompts, output_tokens, True, skip)
        with pytest.raises(ConfigError, match="there are caches for 2 of 25"):
            next(engine.generate(asked))
        assert len(list(engine.generate(Request(None, ((5,) * 9,) * 2, 16, True, skip)))) == 16
