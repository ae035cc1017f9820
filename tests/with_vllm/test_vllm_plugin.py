"""Our linears inside vLLM in this process: the same answers, exact counts, untouched weights, clear refusals."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from selections import calls, save_table
from tiny_models import save_tiny
from tiny_vllm import VLLM_CASES, opened, vllm_config

from harness.engines.base import Request
from harness.errors import ConfigError, UnavailableError
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]

PROMPT = (5, 77, 13, 2, 99, 41, 8, 120, 64)
STEPS = 24
LINEARS = {"qwen3": 12, "llama": 12, "qwen3.5": 24}
"""Products inside the layers."""


def tokens(engine: Any) -> list[int]:
    return [token for chunk in engine.generate(Request(None, (PROMPT,), STEPS, True)) for token in chunk.token_ids]


def logprobs(engine: Any) -> Any:
    """[steps, vocabulary]: of greedy tokens, so where those agree each step saw the same ones."""
    import torch
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, detokenize=False, logprobs=-1)
    (output,) = engine._llm.generate({"prompt_token_ids": list(PROMPT)}, sampling, use_tqdm=False)
    steps = output.outputs[0].logprobs
    return torch.tensor([[step[token].logprob for token in sorted(step)] for step in steps])


def since(before: dict[Any, int], now: dict[Any, int]) -> dict[Any, int]:
    return dict(Counter(now) - Counter(before))


@pytest.mark.parametrize("case, dtype", [("qwen3", "bfloat16"), ("llama", "float32"), ("qwen3.5", "bfloat16")])
def test_answers_agree_and_every_call_is_counted(case: str, dtype: str, tmp_path: Path) -> None:
    model = vllm_config(tmp_path, case, tie_word_embeddings=case == "llama")
    name = {"bfloat16": "BF16", "float32": "F32"}[dtype]
    first, second = (save_table(tmp_path / b, model, b, name) for b in ("cpu-gemv", "torch"))
    extra = {"max_logprobs": -1}
    with opened(model, dtype=dtype, selection=f"{first}{os.pathsep}{second}", extra_args=extra) as engine:
        session, answers, likely, before = open_session(), {}, {}, {}
        assert session is not None
        for variant, backend in ((0, "cpu-gemv"), (-1, "vllm"), (1, "torch"), (0, "cpu-gemv")):
            session.paths.switch(variant)
            before = calls(session)
            answers[variant] = tokens(engine)
            inside, head = Counter[tuple[int | None, str]](), Counter[tuple[int | None, str]]()
            for (layer, of, m, by), count in since(before, calls(session)).items():
                assert of == variant
                (head if layer == "lm_head" else inside)[m, by] += count
            assert inside == {(1, backend): LINEARS[case] * (STEPS - 1), (None, "vllm"): LINEARS[case]}
            assert head == {(1, backend): STEPS}
            likely[variant] = logprobs(engine)
        assert answers[0] == answers[1] == answers[-1]
        for variant in (0, 1):
            assert likely[variant].shape[0] == STEPS
            assert (likely[variant] - likely[-1]).abs().max() < {"BF16": 0.05, "F32": 1e-4}[name]
        assert session.report().kept_bytes > 0 or name == "BF16", "vLLM packs fp32 on every CPU"
        report = engine.report()
    assert open_session() is None
    decode = [row for row in report.ops if row.phase == "decode" and row.note == "variant 0"]
    assert {row.backend for row in decode} == {"cpu-gemv"}
    assert sum(row.num_calls for row in decode) == LINEARS[case] + 1
    assert f"cpu-gemv x{4 * ((STEPS - 1) * LINEARS[case] + STEPS)}" in str(report.resolved["selection_calls"])


@pytest.mark.reference
def test_without_a_selection_vllm_is_as_it_was(tmp_path: Path) -> None:
    """A checkpoint, and also in a process whose layers were replaced for an earlier engine."""
    model = save_tiny("qwen3", tmp_path / "model")
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    with opened(model, load_format="auto", selection=str(table)) as engine:
        selected = tokens(engine)
        assert "SelectedLinearMethod x12" in str(engine.report().resolved["linear_methods"])
        assert "cpu-gemv x300" in str(engine.report().resolved["selection_calls"])
    assert len(set(selected)) > 3, "a model that repeats itself would agree with too many"
    with opened(model, load_format="auto") as engine:
        assert tokens(engine) == selected
        report = engine.report()
    assert open_session() is None
    assert "Selected" not in str(report.resolved["linear_methods"])
    assert report.ops == () and "selection" not in report.resolved


def test_a_batch_takes_the_row_of_its_size(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", rows=(1, 3))
    prompts = tuple(tuple((token * scale) % 131 for token in PROMPT) for scale in (1, 3, 5))
    with opened(model, batch=3, selection=str(table)) as engine:
        before = calls(open_session())
        for num_prompts in (3, 2):
            list(engine.generate(Request(None, prompts[:num_prompts], STEPS, True)))
        found = since(before, calls(open_session()))
    name = "model.layers.1.self_attn.o_proj"
    assert {key[2:]: count for key, count in found.items() if key[0] == name} == {
        (3, "cpu-gemv"): STEPS - 1, (2, "vllm"): STEPS - 1, (None, "vllm"): 2,
    }  # fmt: skip


def test_compiled_code_counts_as_well_and_has_a_key_of_its_own(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv")
    environment = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    with opened(model, graph="compiled", selection=str(table), environment=environment) as engine:
        session = open_session()
        config = engine._engine.vllm_config
        before = calls(session)
        answer = tokens(engine)
        found = since(before, calls(session))
        key = config.compute_hash()
        assert session is not None and config.additional_config.pop("llm-decode-harness")[1:] == [
            session.paths.tables[0].fingerprint
        ]
        assert config.compute_hash() != key
        assert engine.report().resolved["compilation_mode"] != "NONE"
    assert sum(found.values()) == 12 * STEPS + STEPS
    assert {count for (layer, *_), count in found.items() if layer != "lm_head"} == {STEPS - 1, 1}
    with opened(model, selection=str(table)) as engine:
        assert tokens(engine) == answer


def test_a_contest_leaves_every_weight_as_it_was_loaded(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "llama", attention_bias=True)
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    settings = {"dtype": "float32", "environment": {"HARNESS_CONTEST": "1"}}
    with opened(model, selection=str(table), **settings) as engine:
        answer = tokens(engine)
        session = open_session()
        assert session is not None
        hashes, report = session.linears.hashes(), session.report()
    assert len(hashes) == 12 + 1 + 2 * 3, "weights of the layers and the head, biases of qkv and o"
    assert all(before == now for before, now in hashes.values())
    assert report.kept_bytes == 0
    assert all(path.contest_legal for path in report.paths)
    with opened(model, dtype="float32") as engine:
        assert tokens(engine) == answer
    packing = save_table(tmp_path / "p", model, "onednn", "F32")
    with (
        pytest.raises(ConfigError, match="the selection has onednn"),
        opened(model, selection=str(packing), **settings),
    ):
        pass


def test_tables_that_do_not_belong_here(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    with (
        pytest.raises(ConfigError, match="measured elsewhere: dtype F32, here BF16"),
        opened(model, selection=str(table)),
    ):
        pass
    with opened(model, selection=str(table), environment={"HARNESS_SELECTION_FORCE": "1"}) as engine:
        assert any("was forced, it is of dtype F32" in note for note in engine.report().notes)
        assert "Selected" not in str(engine.report().resolved["linear_methods"]), "no layer is of that type"


def test_a_vllm_that_lacks_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers import linear

    model = vllm_config(tmp_path, "qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv")
    monkeypatch.delattr(linear, "RowParallelLinear")
    with (
        pytest.raises(UnavailableError, match=r"this vLLM lacks .*linear.RowParallelLinear.register_oot"),
        opened(model, selection=str(table)),
    ):
        pass


def test_the_cases_are_those_of_the_engine() -> None:
    assert LINEARS.keys() == VLLM_CASES.keys()
