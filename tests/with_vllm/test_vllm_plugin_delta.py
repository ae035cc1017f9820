"""Our gated delta rule inside vLLM in this process: decode steps on vLLM's own state, all else by vLLM itself."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from selections import calls, save_delta_table, save_table
from tiny_models import save_tiny
from tiny_vllm import opened, vllm_config

from harness.engines.base import Request
from harness.errors import UnavailableError
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]

PROMPT = (5, 77, 13, 2, 99, 41, 8, 120, 64)
STEPS = 24
LAYERS = {f"model.layers.{layer}.linear_attn" for layer in (0, 1, 2, 4)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that make states matter, unlike those that vLLM draws; and the state's type as checkpoints have it."""
    folder = tmp_path_factory.mktemp("model")
    heads = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    return save_tiny("qwen3.5", folder, "bfloat16", **heads, mamba_ssm_dtype="float32")


def tokens(engine: Any) -> list[int]:
    return [token for chunk in engine.generate(Request(None, (PROMPT,), STEPS, True)) for token in chunk.token_ids]


def logprobs(engine: Any, *prompts: tuple[int, ...]) -> tuple[Any, Any]:
    """(tokens [prompts, steps], logarithms [prompts, steps, vocabulary]) of prompts that are decoded together."""
    import torch
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, detokenize=False, logprobs=-1)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    answers = [output.outputs[0] for output in engine._llm.generate(asked, sampling, use_tqdm=False)]
    likely = [[[step[token].logprob for token in sorted(step)] for step in answer.logprobs] for answer in answers]
    return torch.tensor([answer.token_ids for answer in answers]), torch.tensor(likely)


def error(model: Path, prompts: tuple[tuple[int, ...], ...], found: tuple[Any, Any]) -> float:
    """Root mean square, beside transformers in fp32 with the same weights and tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    reference, (answers, likely) = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), found
    with torch.no_grad():
        logits = reference(torch.cat((torch.tensor(prompts), answers), 1)).logits
    exact = logits[:, len(PROMPT) - 1 : -1].log_softmax(-1)
    return float((likely - exact).square().mean().sqrt())


def since(before: dict[Any, int]) -> dict[tuple[int, int | None, str], int]:
    """Calls of one layer by (variant, requests, backend); every layer had as many."""
    by_layer: dict[str, dict[Any, int]] = {}
    for (layer, *kind), count in (Counter(calls(open_session())) - Counter(before)).items():
        by_layer.setdefault(layer, {})[tuple(kind)] = count
    assert by_layer.keys() == LAYERS
    (first, *others) = by_layer.values()
    assert all(other == first for other in others)
    return first


@pytest.mark.reference
def test_answers_agree_and_every_step_is_counted(checkpoint: Path, tmp_path: Path) -> None:
    """And without a selection, in a process whose op was replaced, vLLM answers as with it switched off."""
    names = ("cpu-recurrent", "torch-recurrent")
    selection = os.pathsep.join(str(save_delta_table(tmp_path / name, checkpoint, name)) for name in names)
    answers, likely = {}, {}
    with opened(checkpoint, load_format="auto", selection=selection, extra_args={"max_logprobs": -1}) as engine:
        session = open_session()
        assert session is not None
        for variant, backend in ((0, "cpu-recurrent"), (-1, "vllm"), (1, "torch-recurrent"), (0, "cpu-recurrent")):
            session.paths.switch(variant)
            before = calls(session)
            answers[variant] = tokens(engine)
            assert since(before) == {(variant, 1, backend): STEPS - 1, (variant, None, "vllm"): 1}
            likely[variant] = logprobs(engine, PROMPT)
        report = engine.report()
    assert answers[0] == answers[1] == answers[-1]
    assert len(set(answers[0])) > 10, "a model that repeats itself would agree with too many"
    assert not likely[0][1].equal(likely[-1][1]), "two ways to round"
    errors = {variant: error(checkpoint, (PROMPT,), found) for variant, found in likely.items()}
    assert max(errors[0], errors[1]) < 1.25 * errors[-1] < 0.05, "as near to fp32 as vLLM's own bf16"
    (decode,) = (row for row in report.ops if row.selected and row.note == "variant 0")
    assert (decode.op, decode.role, decode.backend) == ("linear-attention", "decode", "cpu-recurrent")
    assert (decode.layers, decode.num_calls, decode.phase) == ("0-2,4", 4, "decode")
    assert "cpu-recurrent x368" in str(report.resolved["selection_calls"]), "4 requests of 23 steps in 4 layers"
    with opened(checkpoint, load_format="auto", extra_args={"max_logprobs": -1}) as engine:
        assert open_session() is None
        assert logprobs(engine, PROMPT)[1].equal(likely[-1][1])
        assert engine.report().ops == ()


@pytest.mark.reference
def test_requests_of_one_step_have_their_own_states(checkpoint: Path, tmp_path: Path) -> None:
    table = save_delta_table(tmp_path / "t", checkpoint, "cpu-recurrent")
    prompts = tuple(tuple((token * scale) % 131 for token in PROMPT) for scale in (1, 3, 5))
    arguments = {"batch": 3, "load_format": "auto", "extra_args": {"max_logprobs": -1}}
    with opened(checkpoint, selection=str(table), **arguments) as engine:
        session, errors = open_session(), {}
        assert session is not None
        for variant, backend in ((0, "cpu-recurrent"), (-1, "vllm")):
            session.paths.switch(variant)
            before = calls(session)
            found = logprobs(engine, *prompts)
            assert since(before)[variant, 3, backend] == STEPS - 1
            errors[variant] = error(checkpoint, prompts, found)
    assert errors[0] < 1.25 * errors[-1] < 0.05


@pytest.mark.reference
def test_compiled_code_takes_the_same_steps(checkpoint: Path, tmp_path: Path) -> None:
    table = save_delta_table(tmp_path / "t", checkpoint, "cpu-recurrent")
    environment = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    arguments = {"graph": "compiled", "load_format": "auto", "environment": environment}
    with opened(checkpoint, selection=str(table), **arguments) as engine:
        session, answers = open_session(), {}
        assert session is not None
        for variant, backend in ((0, "cpu-recurrent"), (-1, "vllm")):
            session.paths.switch(variant)
            before = calls(session)
            answers[variant] = tokens(engine)
            assert since(before) == {(variant, 1, backend): STEPS - 1, (variant, None, "vllm"): 1}
        assert engine.report().resolved["compilation_mode"] != "NONE"
    assert answers[0] == answers[-1]


def test_a_state_that_no_kernel_takes_is_vllms(tmp_path: Path) -> None:
    """States in bf16 are asked for: vLLM by itself takes the model's type, or fp32 where a CPU has AVX-512 BF16."""
    model = vllm_config(tmp_path, "qwen3.5")
    table = save_delta_table(tmp_path / "t", model, "cpu-recurrent")
    arguments = {"extra_args": {"mamba_ssm_cache_dtype": "bfloat16"}}
    with opened(model, selection=str(table), **arguments) as engine:
        before = calls(open_session())
        tokens(engine)
        assert since(before) == {(0, 1, "vllm"): STEPS - 1, (0, None, "vllm"): 1}
        (decode,) = (row for row in engine.report().ops if row.phase == "decode")
    assert decode.fallback_reason == (
        "vLLM keeps the states in bfloat16 and bfloat16 (set mamba_ssm_cache_dtype to float32)"
    )
    assert not decode.selected


def test_a_table_of_linears_leaves_the_rule_alone(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3.5", mamba_ssm_dtype="float32")
    table = save_table(tmp_path / "t", model, "cpu-gemv")
    with opened(model, selection=str(table)) as engine:
        tokens(engine)
        assert {row.op for row in engine.report().ops} == {"linear"}


def test_a_vllm_that_lacks_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    model = vllm_config(tmp_path, "qwen3.5", mamba_ssm_dtype="float32")
    table = save_delta_table(tmp_path / "t", model, "cpu-recurrent")
    monkeypatch.delattr(gdn_attention, "cpu_gdn_attention_core")
    with (
        pytest.raises(UnavailableError, match=r"this vLLM lacks .*gdn_attention.cpu_gdn_attention_core"),
        opened(model, selection=str(table)),
    ):
        pass
