"""Our attention inside vLLM in this process: the same answers, exact counts, and what it does not take."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import FORCED, STEPS, Fault, distance, read
from selections import calls, save_attention_table
from tiny_vllm import opened

from harness.models import resolve_model
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler, pytest.mark.reference]

FAULTS: tuple[dict[str, Any], ...] = ({"attention": 0.0}, {"attention": 1.5}, {"overlooked": 1})


def num_attending(model: Path) -> int:
    return sum(layer.mixer.kind == "attention" for layer in resolve_model(str(model)).spec.layers)


def counted(before: dict[Any, int]) -> dict[tuple[int, int | None, str], int]:
    """Calls of all layers together since then, by variant, rows and backend."""
    found: Counter[tuple[int, int | None, str]] = Counter()
    for (_, *key), count in (Counter(calls(open_session())) - Counter(before)).items():
        found[tuple(key)] += count  # type: ignore[index]
    return dict(found)


@pytest.mark.parametrize("case, dtype", [("qwen3", "bfloat16"), ("llama", "float32"), ("qwen3.5", "bfloat16")])
def test_answers_agree_and_every_call_is_counted(
    case: str, dtype: str, saved: Callable[..., Path], tmp_path: Path
) -> None:
    model, name = saved(case, dtype), {"bfloat16": "BF16", "float32": "F32"}[dtype]
    tables = [save_attention_table(tmp_path / by, model, by, dtype=name) for by in ("cpu-decode", "torch-sdpa")]
    layers = num_attending(model)
    settings = {"load_format": "auto", "extra_args": FORCED}
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
            found[variant] = read(engine)
            assert counted(before) == {
                (variant, 1, by): layers * (STEPS - 1), (variant, None, prompts_by): layers
            }  # fmt: skip
    for variant in (0, 1):
        assert distance(model, found[variant], found[-1]) < 1


@pytest.mark.parametrize("case, dtype", [("qwen3", "bfloat16"), ("llama", "float32"), ("qwen3.5", "bfloat16")])
def test_attention_that_is_wrong_shows(
    case: str, dtype: str, saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agreement above would be worth nothing otherwise."""
    model = saved(case, dtype)
    table = save_attention_table(tmp_path / "t", model, dtype={"bfloat16": "BF16", "float32": "F32"}[dtype])
    fault = Fault()
    fault.bury(monkeypatch)
    with opened(model, load_format="auto", selection=str(table), extra_args=FORCED) as engine:
        session, found = open_session(), []
        assert session is not None
        session.paths.switch(-1)
        stock = read(engine)
        session.paths.switch(0)
        right = distance(model, read(engine), stock)
        for values in FAULTS:
            with fault.planted(**values):
                found.append(distance(model, read(engine), stock))
    assert right < 1
    assert min(found) > 1, found


def test_steps_that_mix_prompts_in_chunks_with_decoding(saved: Callable[..., Path], tmp_path: Path) -> None:
    """Caches of several blocks; compiled, where attention is not."""
    model = saved("qwen3")
    table = save_attention_table(tmp_path / "t", model, dtype="F32")
    prompts = [tuple((7 * place + 31 * start) % 131 for place in range(start, start + n)) for start, n in
               ((3, 9), (5, 70), (11, 33))]  # fmt: skip
    settings = {
        "load_format": "auto", "graph": "compiled", "max_num_batched_tokens": 16, "max_num_seqs": 3,
        "max_model_len": 128, "extra_args": FORCED | {"block_size": 32},
        "environment": {"VLLM_CACHE_ROOT": str(tmp_path / "c")},
    }  # fmt: skip
    with opened(model, selection=str(table), **settings) as engine:
        session, found, before = open_session(), {}, {}
        assert session is not None
        for variant in (0, -1):
            session.paths.switch(variant)
            before[variant] = calls(session)
            found[variant] = read(engine, *prompts)
            before[variant] = counted(before[variant])
    assert distance(model, found[0], found[-1]) < 1
    layers = num_attending(model)
    assert before[0][0, 1, "cpu-decode"] == layers * 3 * (STEPS - 1) == before[-1][-1, 1, "vllm"]
    assert before[0][0, None, "torch-sdpa"] == before[-1][-1, None, "vllm"] > layers * 3, "several chunks a prompt"


def test_what_vllm_remembers_of_an_earlier_model_is_forgotten(saved: Callable[..., Path], tmp_path: Path) -> None:
    """It looks a backend up once for each kind of heads, and this process may have had a model without a table."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import _cached_get_attn_backend

    from harness.vllm_plugin import cpu_attention

    model = saved("qwen3", "bfloat16")
    settings = {"load_format": "auto", "extra_args": FORCED}
    AttentionBackendEnum.CPU_ATTN.clear_override()
    _cached_get_attn_backend.cache_clear()
    with opened(model, **settings) as engine:
        stock = read(engine)
    cpu_attention.replace_layers()  # as the plugin does for a process's first table with attention
    table = save_attention_table(tmp_path / "t", model)
    with opened(model, selection=str(table), **settings) as engine:
        before = calls(open_session())
        assert distance(model, read(engine), stock) < 1
        assert counted(before)[0, 1, "cpu-decode"] == num_attending(model) * (STEPS - 1)
