"""Our attention inside vLLM in this process: the same answers, exact counts, and what it does not take."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from selections import calls, save_attention_table
from tiny_vllm import opened, vllm_config

from harness.models import resolve_model
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]

PROMPT = (5, 77, 13, 2, 99, 41, 8, 120, 64)
STEPS = 24


def answers(engine: Any, *prompts: tuple[int, ...]) -> Any:
    """(tokens, log probabilities [steps, vocabulary]) of each prompt: where tokens agree each step saw the same."""
    import torch
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, detokenize=False, logprobs=-1)
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts or (PROMPT,)]
    outputs = [output.outputs[0] for output in engine._llm.generate(given, sampling, use_tqdm=False)]
    steps = ([[step[token].logprob for token in sorted(step)] for step in output.logprobs] for output in outputs)
    return [(list(output.token_ids), torch.tensor(likely)) for output, likely in zip(outputs, steps, strict=True)]


def assert_agree(ours: Any, stock: Any, tolerance: float) -> None:
    for (tokens, likely), (their_tokens, theirs) in zip(ours, stock, strict=True):
        assert tokens == their_tokens and len(tokens) == STEPS
        assert (likely - theirs).abs().max() < tolerance


def num_attending(model: Path) -> int:
    return sum(layer.mixer.kind == "attention" for layer in resolve_model(str(model)).spec.layers)


def counted(before: dict[Any, int]) -> dict[tuple[int, int | None, str], int]:
    """Calls of all layers together since then, by variant, rows and backend."""
    found: Counter[tuple[int, int | None, str]] = Counter()
    for (_, *key), count in (Counter(calls(open_session())) - Counter(before)).items():
        found[tuple(key)] += count  # type: ignore[index]
    return dict(found)


@pytest.mark.parametrize("case, dtype", [("qwen3", "bfloat16"), ("llama", "float32"), ("qwen3.5", "bfloat16")])
def test_answers_agree_and_every_call_is_counted(case: str, dtype: str, tmp_path: Path) -> None:
    model, name = vllm_config(tmp_path, case), {"bfloat16": "BF16", "float32": "F32"}[dtype]
    tables = [save_attention_table(tmp_path / by, model, by, dtype=name) for by in ("cpu-decode", "torch-sdpa")]
    layers = num_attending(model)
    settings = {"dtype": dtype, "extra_args": {"max_logprobs": -1}}
    with opened(model, selection=os.pathsep.join(map(str, tables)), **settings) as engine:
        session, found = open_session(), {}
        assert session is not None
        for variant, by, prompts_by in (
            (0, "cpu-decode", "torch-sdpa"),
            (-1, "vllm", "vllm"),
            (1, *2 * ("torch-sdpa",)),
        ):
            session.paths.switch(variant)
            before = calls(session)
            found[variant] = answers(engine)
            assert counted(before) == {
                (variant, 1, by): layers * (STEPS - 1), (variant, None, prompts_by): layers
            }  # fmt: skip
    for variant in (0, 1):
        assert_agree(found[variant], found[-1], {"BF16": 0.05, "F32": 1e-4}[name])


def test_steps_that_mix_prompts_in_chunks_with_decoding(tmp_path: Path) -> None:
    """Caches of several blocks; compiled, where attention is not."""
    model = vllm_config(tmp_path, "qwen3")
    table = save_attention_table(tmp_path / "t", model, dtype="F32")
    prompts = [tuple((7 * place + 31 * start) % 131 for place in range(start, start + n)) for start, n in
               ((3, 9), (5, 70), (11, 33))]  # fmt: skip
    settings = {
        "dtype": "float32", "graph": "compiled", "max_num_batched_tokens": 16, "max_num_seqs": 3, "max_model_len": 128,
        "extra_args": {"max_logprobs": -1, "block_size": 32}, "environment": {"VLLM_CACHE_ROOT": str(tmp_path / "c")},
    }  # fmt: skip
    with opened(model, selection=str(table), **settings) as engine:
        session, found, before = open_session(), {}, {}
        assert session is not None
        for variant in (0, -1):
            session.paths.switch(variant)
            before[variant] = calls(session)
            found[variant] = answers(engine, *prompts)
            before[variant] = counted(before[variant])
    assert_agree(found[0], found[-1], 1e-4)
    layers = num_attending(model)
    assert before[0][0, 1, "cpu-decode"] == layers * 3 * (STEPS - 1) == before[-1][-1, 1, "vllm"]
    assert before[0][0, None, "torch-sdpa"] == before[-1][-1, None, "vllm"] > layers * 3, "several chunks a prompt"


def test_what_vllm_remembers_of_an_earlier_model_is_forgotten(tmp_path: Path) -> None:
    """It looks a backend up once for each kind of heads, and this process may have had a model without a table."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import _cached_get_attn_backend

    from harness.vllm_plugin import cpu_attention

    model = vllm_config(tmp_path, "qwen3")
    AttentionBackendEnum.CPU_ATTN.clear_override()
    _cached_get_attn_backend.cache_clear()
    with opened(model, extra_args={"max_logprobs": -1}) as engine:
        stock = answers(engine)
    cpu_attention.replace_layers()  # as the plugin does for a process's first table with attention
    table = save_attention_table(tmp_path / "t", model)
    with opened(model, selection=str(table), extra_args={"max_logprobs": -1}) as engine:
        before = calls(open_session())
        assert_agree(answers(engine), stock, 0.05)
        assert counted(before)[0, 1, "cpu-decode"] == num_attending(model) * (STEPS - 1)
