"""Our linears inside vLLM in this process: the same answers, exact counts, untouched weights, clear refusals."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import FORCED, PROMPT, STEPS, Fault, assert_same_texts, distance, read
from selections import calls, save_table
from tiny_vllm import VLLM_CASES, opened, vllm_config

from harness.engines.base import Request
from harness.errors import ConfigError, UnavailableError
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler, pytest.mark.reference]

LINEARS = {"qwen3": 12, "llama": 12, "qwen3.5": 24}
"""Products inside the layers."""
FAULTS = (
    ("layers.1.mlp.gate_up", 0.0), ("layers.1.mlp.down", 0.0), ("self_attn.qkv", 2.0), ("self_attn.o_proj", 0.0),
    ("lm_head", 1.5),
)  # fmt: skip
"""(part of a layer's name, what its product is multiplied by)"""
DELTA_FAULTS = (
    ("layers.1.linear_attn.in_proj_qkvz", 2.0), ("layers.1.linear_attn.in_proj_ba", 0.0),
    ("layers.1.linear_attn.out", 0.0),
)  # fmt: skip
SLIGHT_FAULTS = tuple((layer, 1.003) for layer, _ in FAULTS)
"""Less than bf16 rounds to."""


def tokens(engine: Any) -> list[int]:
    return [token for chunk in engine.generate(Request(None, (PROMPT,), STEPS, True)) for token in chunk.token_ids]


def since(before: dict[Any, int], now: dict[Any, int]) -> dict[Any, int]:
    return dict(Counter(now) - Counter(before))


@pytest.mark.parametrize("case, dtype", [("qwen3", "bfloat16"), ("llama", "float32"), ("qwen3.5", "bfloat16")])
def test_answers_agree_and_every_call_is_counted(
    case: str, dtype: str, saved: Callable[..., Path], tmp_path: Path
) -> None:
    model = saved(case, dtype, tie_word_embeddings=case == "llama")
    name = {"bfloat16": "BF16", "float32": "F32"}[dtype]
    first, second = (save_table(tmp_path / b, model, b, name) for b in ("cpu-gemv", "torch"))
    selection = f"{first}{os.pathsep}{second}"
    with opened(model, load_format="auto", selection=selection, extra_args=FORCED) as engine:
        session, answers, readings, before = open_session(), {}, {}, {}
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
            readings[variant] = read(engine)
        for variant in (0, 1):
            assert_same_texts(model, answers[variant], answers[-1])
            assert distance(model, readings[variant], readings[-1]) < 1
        assert session.report().kept_bytes > 0 or name == "BF16", "vLLM packs fp32 on every CPU"
        report = engine.report()
    assert open_session() is None
    decode = [row for row in report.ops if row.phase == "decode" and row.note == "variant 0"]
    assert {row.backend for row in decode} == {"cpu-gemv"}
    assert sum(row.num_calls for row in decode) == LINEARS[case] + 1
    assert f"cpu-gemv x{4 * ((STEPS - 1) * LINEARS[case] + STEPS)}" in str(report.resolved["selection_calls"])


@pytest.mark.parametrize(
    "case, dtype, faults",
    [
        ("qwen3", "bfloat16", FAULTS),
        ("llama", "float32", FAULTS + SLIGHT_FAULTS),
        ("qwen3.5", "bfloat16", FAULTS + DELTA_FAULTS),
    ],
)
def test_a_product_that_is_wrong_shows(
    case: str, dtype: str, faults: tuple[tuple[str, float], ...], saved: Callable[..., Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The agreement above would be worth nothing otherwise."""
    model = saved(case, dtype)
    table = save_table(tmp_path / "t", model, "cpu-gemv", {"bfloat16": "BF16", "float32": "F32"}[dtype])
    fault = Fault()
    fault.bury(monkeypatch)
    with opened(model, load_format="auto", selection=str(table), extra_args=FORCED) as engine:
        session, found = open_session(), {}
        assert session is not None
        session.paths.switch(-1)
        stock = read(engine)
        session.paths.switch(0)
        right = distance(model, read(engine), stock)
        for layer, factor in faults:
            with fault.planted(layer=layer, factor=factor):
                found[layer, factor] = distance(model, read(engine), stock)
    assert right < 1
    assert min(found.values()) > 1, found


def test_without_a_selection_vllm_is_as_it_was(saved: Callable[..., Path], tmp_path: Path) -> None:
    """Also in a process whose layers were replaced for an earlier engine."""
    model = saved("qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    with opened(model, load_format="auto", selection=str(table)) as engine:
        selected = tokens(engine)
        assert "SelectedLinearMethod x12" in str(engine.report().resolved["linear_methods"])
        report = engine.report()
        assert "cpu-gemv x300" in str(report.resolved["selection_calls"])
        assert report.counted_steps == report.answered_steps == STEPS - 1
    with opened(model, load_format="auto") as engine:
        assert_same_texts(model, selected, tokens(engine))
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
        found, report = since(before, calls(open_session())), engine.report()
    assert (report.counted_steps, report.answered_steps) == (STEPS - 1, 2 * (STEPS - 1)), "two rows are not listed"
    name = "model.layers.1.self_attn.o_proj"
    assert {key[2:]: count for key, count in found.items() if key[0] == name} == {
        (3, "cpu-gemv"): STEPS - 1, (2, "vllm"): STEPS - 1, (None, "vllm"): 2,
    }  # fmt: skip


def test_compiled_code_counts_as_well_and_has_a_key_of_its_own(saved: Callable[..., Path], tmp_path: Path) -> None:
    model = saved("qwen3")
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    settings = {"load_format": "auto", "selection": str(table)}
    environment = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    with opened(model, graph="compiled", environment=environment, **settings) as engine:
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
    with opened(model, **settings) as engine:
        assert_same_texts(model, tokens(engine), answer)


def test_a_contest_leaves_every_weight_as_it_was_loaded(saved: Callable[..., Path], tmp_path: Path) -> None:
    model = saved("llama", attention_bias=True)
    table = save_table(tmp_path / "t", model, "cpu-gemv", "F32")
    settings = {"load_format": "auto", "extra_args": FORCED, "environment": {"HARNESS_CONTEST": "1"}}
    with opened(model, selection=str(table), **settings) as engine:
        ours = read(engine)
        session = open_session()
        assert session is not None
        hashes, report = session.linears.hashes(), session.report()
    assert len(hashes) == 12 + 1 + 2 * 3, "weights of the layers and the head, biases of qkv and o"
    assert all(before == now for before, now in hashes.values())
    assert session.linears.kept_bytes == 0 and 0 < report.kept_bytes < 1 << 16, "a row of x in the kernel's form"
    assert all(path.contest_legal for path in report.paths)
    with opened(model, load_format="auto", extra_args=FORCED) as engine:
        assert distance(model, ours, read(engine)) < 1
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
    forced = {"HARNESS_SELECTION_FORCE": "1"}
    with (
        pytest.raises(UnavailableError, match="0 of vLLM's 1 workers take something"),  # no layer is of that type
        opened(model, selection=str(table), environment=forced),
    ):
        pass


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
