"""vLLM in this process: its tokens, what it says of itself, what it refuses, what it leaves behind."""

import os
from pathlib import Path
from typing import Any

import pytest
from tiny_vllm import VLLM_CASES, VOCAB, opened, run_config, vllm_config

from harness.bench import run_bench
from harness.errors import ConfigError, MeasurementError, UnavailableError
from harness.records import load_events
from harness.specs.event import ChunkEvent, PauseEvent, Usage
from harness.specs.request import Request
from harness.specs.run import RunConfig

pytestmark = pytest.mark.vllm

PROMPT = (5, 77, 13, 2, 99, 41, 8, 120, 64)


def ask(*prompts: tuple[int, ...], tokens: int = 24, ignore_eos: bool = True) -> Request:
    return Request(None, prompts or (PROMPT,), tokens, ignore_eos)


def answer(engine: Any, request: Request) -> list[tuple[int, ...]]:
    return [chunk.token_ids for chunk in engine.generate(request)]


@pytest.mark.parametrize("case", VLLM_CASES)
def test_a_model_answers_and_says_what_ran(case: str, tmp_path: Path) -> None:
    before = dict(os.environ)
    with opened(vllm_config(tmp_path, case)) as engine:
        tokens = answer(engine, ask())
        assert [len(step) for step in tokens] == [1] * 24
        assert all(0 <= token < VOCAB for (token,) in tokens)
        assert answer(engine, ask()) == tokens
        assert engine.can_pause
        report = engine.report()
    assert os.environ == before
    resolved, has_delta = report.resolved, case == "qwen3.5"
    assert (report.kind, report.dtype, report.graph) == ("vllm", "BF16", False)
    assert resolved["architecture"] == VLLM_CASES[case]["architectures"][0]
    assert (resolved["executor"], resolved["compilation_mode"], resolved["cudagraph_mode"]) == ("uni", "NONE", "NONE")
    assert (resolved["enable_prefix_caching"], resolved["async_scheduling"]) == (False, False)
    assert (resolved["max_model_len"], resolved["max_num_seqs"]) == (9 + 24, 1)
    assert resolved["attention_backends"] == ("CPU_ATTN x1, GDN_ATTN x4" if has_delta else "CPU_ATTN x3")
    assert "UnquantizedLinearMethod" in str(resolved["linear_methods"])
    assert (resolved["mamba_ssm_cache_dtype"] is not None) is has_delta
    assert any("random weights" in note for note in report.notes)


def test_a_run_is_measured_and_pauses_change_no_token(tmp_path: Path) -> None:
    config = run_config(vllm_config(tmp_path, "qwen3"))
    tokens = []
    for every_s, num_pauses in ((None, 0), (1e-9, 2 * 24)):
        config["probe"]["every_s"] = every_s
        folder, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
        events = load_events(folder)
        assert record.status == "done"
        assert [figures.num_output_tokens for figures in record.requests] == [24, 24]
        assert sum(isinstance(event, PauseEvent) for event in events) == num_pauses
        tokens.append([event.token_ids for event in events if isinstance(event, ChunkEvent)])
        assert record.environment is not None
        assert record.environment.variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert tokens[0] == tokens[1]


def test_threads_stay_on_their_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("one core: nothing to bind")
    everywhere = os.sched_getaffinity(0)
    environment = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[1]},{cores[0]}"}
    with opened(vllm_config(tmp_path, "qwen3"), environment=environment) as engine:
        steps = engine.generate(ask())
        next(steps)
        assert os.sched_getaffinity(0) == {cores[1]}
        masks = [os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()]
        assert {cores[0]} in masks
        steps.close()
        assert os.sched_getaffinity(0) == everywhere
        assert engine.report().resolved["bound_cores"] == f"{cores[1]},{cores[0]}"
        assert "omp" in str(engine.report().resolved["openmp_runtime"])


def test_a_request_that_is_left_ends(tmp_path: Path) -> None:
    with opened(vllm_config(tmp_path, "qwen3")) as engine:
        whole = answer(engine, ask())
        steps = engine.generate(ask())
        assert next(steps).token_ids == whole[0]
        steps.close()
        assert not engine._llm.llm_engine.has_unfinished_requests(), "the next one would wait for it"
        assert answer(engine, ask()) == whole


def with_tokenizer(model: Path) -> Path:
    """Words w0 to w130 are tokens 0 to 130."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))
    return model


def test_a_text_is_the_prompt_that_its_ids_are(tmp_path: Path) -> None:
    text = Request(" ".join(f"w{token}" for token in PROMPT), None, 24, True)
    with opened(with_tokenizer(vllm_config(tmp_path, "qwen3"))) as engine:
        assert engine.num_prompt_tokens(text) == engine.num_prompt_tokens(ask()) == len(PROMPT)
        chunks = list(engine.generate(text))
        assert [chunk.token_ids for chunk in chunks] == answer(engine, ask())
    assert "".join(chunk.text for chunk in chunks).split() == [f"w{chunk.token_ids[0]}" for chunk in chunks]
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert chunks[-1].usage == Usage(prompt_tokens=len(PROMPT), output_tokens=24, cached_tokens=0)
    assert chunks[-1].finish_reason == "length"


@pytest.mark.parametrize("caching", [False, True])
def test_a_prompt_found_in_the_prefix_cache_makes_the_run_invalid(tmp_path: Path, caching: bool) -> None:
    config = run_config(
        with_tokenizer(vllm_config(tmp_path, "qwen3")), enable_prefix_caching=caching, extra_args={"block_size": 32}
    )
    config["workload"] |= {"prompts": (" ".join(f"w{token}" for token in range(70)),), "input_tokens": None}
    _, record, _ = run_bench(RunConfig.model_validate(config), tmp_path, lambda line: None)
    assert [figures.cached_tokens for figures in record.requests] == ([0, 64] if caching else [0, 0])
    assert record.analysis is not None
    assert ("in a cache" in record.analysis.reason) is caching


def test_natural_stop_ends_with_the_end_token(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3")
    with opened(model) as engine:
        tokens = answer(engine, ask())
    end = next(place for place, token in enumerate(tokens) if token not in tokens[:place] and place)
    vllm_config(tmp_path, "qwen3", eos_token_id=tokens[end][0])
    with opened(model) as engine:
        assert answer(engine, ask(ignore_eos=False)) == tokens[: end + 1]
        assert answer(engine, ask()) == tokens, "fixed length goes on past the end token"


def test_a_batch_answers_as_each_prompt_does_alone(tmp_path: Path) -> None:
    prompts = [tuple((token * scale) % VOCAB for token in PROMPT) for scale in (1, 3, 5)]
    model = vllm_config(tmp_path, "qwen3")
    with opened(model, batch=3, dtype="float32") as engine:
        together = answer(engine, ask(*prompts))
        alone = [answer(engine, ask(prompt)) for prompt in prompts]
    assert together == [sum(step, ()) for step in zip(*alone, strict=True)]
    with (
        opened(model, batch=3, max_num_batched_tokens=16) as engine,
        pytest.raises(MeasurementError, match="did not start together"),
    ):
        answer(engine, ask(*prompts))


@pytest.mark.reference
@pytest.mark.compiler
def test_it_decodes_what_the_native_engine_does(tmp_path: Path) -> None:
    """The same random checkpoint in float32, where neither rounds enough to part the greedy tokens; and two workers of
    vLLM's, in processes of their own, do as well."""
    from native_engines import ROUTES
    from tiny_models import save_tiny

    from harness.engines.native.rig import NativeRig
    from harness.models import resolve_model

    model = save_tiny("qwen3", tmp_path / "qwen3")
    values = run_config(model) | {"engine": {"kind": "native", "device": "cpu", **ROUTES["torch"]}}
    rig = NativeRig(RunConfig.model_validate(values), resolve_model(str(model)))
    try:
        expected = answer(rig.open_engine(), ask())
    finally:
        rig.close()
    assert len(set(expected)) > 3, "a model that repeats itself would agree with too many"
    with opened(model, load_format="auto") as engine:
        assert engine.report().notes == ()
        assert answer(engine, ask()) == expected
    with opened(model, load_format="auto", tensor_parallel=2) as engine:
        assert answer(engine, ask()) == expected
        resolved = engine.report().resolved
        assert (resolved["executor"], resolved["tensor_parallel_size"]) == ("mp", 2)
        assert not engine.can_pause, "waiting workers spin on the cores that a probe would need"


@pytest.mark.parametrize(
    ("engine", "error", "words"),
    [
        ({"extra_args": {"no_such": 1}}, ConfigError, "no_such"),
        ({"attention_backend": "NO_SUCH"}, ConfigError, "NO_SUCH"),
        ({"environment": {"VLLM_CPU_OMP_THREADS_BIND": "some"}}, ConfigError, "THREADS_BIND is 'some'"),
        ({"environment": {"VLLM_CPU_OMP_THREADS_BIND": "4095"}}, ConfigError, "core 4095"),
        ({"kv_cache_bytes": 1 << 50}, ConfigError, "kv cache"),
    ],
)
def test_settings_that_it_can_not_take(tmp_path: Path, engine: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words), opened(vllm_config(tmp_path, "qwen3"), **engine):
        pass


def test_requests_that_it_can_not_take(tmp_path: Path) -> None:
    with opened(vllm_config(tmp_path, "qwen3")) as engine:
        with pytest.raises(ConfigError, match="34 positions, max_model_len is 33"):
            answer(engine, ask(tokens=25))
        assert len(answer(engine, ask())) == 24


def test_a_step_that_fails_is_explained(tmp_path: Path) -> None:
    """Its delta rule on a CPU wants bf16."""
    with (
        opened(vllm_config(tmp_path, "qwen3.5"), dtype="float32") as engine,
        pytest.raises(UnavailableError, match="BF16"),
    ):
        answer(engine, ask())
