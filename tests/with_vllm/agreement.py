"""Whether vLLM computes the same with a selection as without: log-probabilities of one given text, step by step.

Weights that vLLM draws itself make every token as likely as any other, and a layer that answers zero then changes
nothing that shows: these readings are of random checkpoints, and no bound is taken unless their logits differ by far
more.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.models import resolve_model

PROMPT = (5, 77, 13, 2, 99, 41, 8, 120, 64)
STEPS = 24
FORCED = {"max_logprobs": -1, "logits_processors": ["forcing:Forced"]}
"""What an engine has to be opened with."""
F32_BOUND = 5e-5
"""Sums in another order part by 5e-6 at most here."""
MIN_SPREAD = 20
"""A step's logits have to differ by so many times the bound, as a standard deviation."""


class Reading(NamedTuple):
    prompts: tuple[tuple[int, ...], ...]
    likely: Any
    """Log-probabilities [prompts, steps, vocabulary]."""


def text(number: int) -> list[int]:
    """What is answered to a batch's prompt of this number."""
    return [(place * (place + 37) + 11 * number) % 131 for place in range(STEPS)]


def sampling(number: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0, max_tokens=STEPS, ignore_eos=True, detokenize=False, logprobs=-1,
        extra_args={"text": text(number)},
    )  # fmt: skip


def read(engine: Any, *prompts: tuple[int, ...]) -> Reading:
    """Decoded together, each its own text: whatever a step computes, all later ones see the same tokens."""
    return read_llm(engine._llm, *prompts)


def read_llm(llm: Any, *prompts: tuple[int, ...]) -> Reading:
    import torch

    prompts = prompts or (PROMPT,)
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    params = [sampling(number) for number in range(len(prompts))]
    answers = [output.outputs[0] for output in llm.generate(given, params, use_tqdm=False)]
    assert [list(answer.token_ids) for answer in answers] == [text(number) for number in range(len(prompts))]
    likely = [[[step[token].logprob for token in sorted(step)] for step in answer.logprobs] for answer in answers]
    return Reading(prompts, torch.tensor(likely))


@functools.cache
def exact(model: Path, prompts: tuple[tuple[int, ...], ...]) -> Any:
    """By transformers in fp32, with the same weights and tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    reference, found = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), []
    with torch.no_grad():
        for number, prompt in enumerate(prompts):
            logits = reference(torch.tensor([[*prompt, *text(number)]])).logits
            found.append(logits[0, len(prompt) - 1 : -1].log_softmax(-1))
    return torch.stack(found)


def distance(model: Path, ours: Reading, stock: Reading) -> float:
    """Between two readings, as a share of what rounding may explain: below 1 they agree.

    In fp32: the largest difference. In bf16, where both round, each beside fp32 with the same weights: all steps
    together (ours may be off by a quarter more), and the worst step (by half more).
    """
    spread = float(stock.likely.std(-1).min())
    assert ours.prompts == stock.prompts and ours.likely.shape == stock.likely.shape
    assert ours.likely.isfinite().all()
    if resolve_model(str(model)).spec.dtype == "F32":
        assert spread > MIN_SPREAD * F32_BOUND
        return float((ours.likely - stock.likely).abs().max()) / F32_BOUND
    true = exact(model, stock.prompts)
    our_error, their_error = ((each.likely - true).square().mean(-1) for each in (ours, stock))
    bounds = 1.25 * float(their_error.mean().sqrt()), 1.5 * float(their_error.max().sqrt())
    assert spread > MIN_SPREAD * bounds[0]
    return max(float(our_error.mean().sqrt()) / bounds[0], float(our_error.max().sqrt()) / bounds[1])


def assert_same_texts(model: Path, ours: list[int], stock: list[int]) -> None:
    """Greedy answers: in fp32 the same. In bf16 two tokens may be as likely up to rounding, and all later ones part."""
    assert len(ours) == len(stock) == STEPS
    assert len(set(stock)) > 4, f"a model that repeats itself would agree with too many: {stock}"
    if resolve_model(str(model)).spec.dtype == "F32":
        assert ours == stock
    elif ours != stock:
        step = next(step for step in range(STEPS) if ours[step] != stock[step])
        print(f"texts part at step {step}: {ours[step:]} and {stock[step:]}")


class Fault:
    """What our kernels give, spoilt while it is planted; it may be exchanged while vLLM runs."""

    def __init__(self) -> None:
        self.layer, self.factor = "", 1.0
        """Products of layers whose names contain it, times the factor."""
        self.attention = 1.0
        """Outputs of decode steps, times this."""
        self.overlooked = 0
        """Newest places that a decode step does not see."""

    @contextmanager
    def planted(self, **values: Any) -> Iterator[None]:
        before = dict(vars(self))
        vars(self).update(values)
        yield
        vars(self).update(before)

    def bury(self, patch: pytest.MonkeyPatch) -> None:
        """Into the plugin, before an engine is opened."""
        from harness.vllm_plugin import linears
        from harness.vllm_plugin.attention import OnBlocks
        from harness.vllm_plugin.gpu_attentions import GpuAttentions

        product, attend, decode = linears.bound_product, OnBlocks.__call__, GpuAttentions.decode

        def spoilt_product(backend: Any, packed: Any, linear: Any, *more: Any) -> Any:
            run = product(backend, packed, linear, *more)
            return lambda x, bias: run(x, bias) * (self.factor if self.layer and self.layer in linear.name else 1)

        def spoilt_attend(one: Any, q: Any, cache: Any, filled: int, out: Any) -> None:
            attend(one, q, cache, max(filled - self.overlooked, 1), out)
            out *= self.attention

        def spoilt_decode(one: Any, layer: Any, q: Any, cache: Any, contexts: Any, out: Any) -> Any:
            ours = decode(one, layer, q, cache, contexts - self.overlooked, out)
            if ours:
                out *= self.attention
            return ours

        patch.setattr(linears, "bound_product", spoilt_product)
        patch.setattr(OnBlocks, "__call__", spoilt_attend)
        patch.setattr(GpuAttentions, "decode", spoilt_decode)
