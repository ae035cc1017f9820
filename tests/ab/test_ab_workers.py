"""What a comparison poses where several workers share every layer: one worker's problems, by hand."""

import json
from pathlib import Path

import pytest
from tiny_ab import HF

from harness.ab.shapes import Calls, cases, linear_cases
from harness.errors import ConfigError
from harness.models import resolve_model
from harness.specs.ab import AbConfig
from harness.specs.parts.attention import Attention


def labels(name: str, num_workers: int) -> dict[str, tuple[str, Calls]]:
    return {case.label: (case.role, case.calls) for case in linear_cases(resolve_model(name).spec, [1], num_workers)}


def test_half_of_qwen3_0_6b() -> None:
    """8 of 16 query heads, 4 of 8 key heads of 128; 1536 of the MLP's width; half of 151,936 tokens."""
    found = labels("qwen3-0.6b", 2)
    assert found["1x2048x1024"] == ("qkv", Calls(fused=28, unfused=0))
    assert found["1x1024x1024"] == ("q/o", Calls(fused=28, unfused=56))
    assert found["1x3072x1024"] == ("gate_up", Calls(fused=28, unfused=0))
    assert found["1x1024x1536"] == ("down", Calls(fused=28, unfused=28))
    assert found["1x75968x1024"] == ("lm_head", Calls(1, 1))
    assert len(found) == 7, "k/v and gate/up beside them"


def test_key_heads_that_are_fewer_than_workers_are_kept_several_times() -> None:
    assert labels("qwen3-0.6b", 16)["1x384x1024"][1].fused == 2 * 28, "qkv has one of each head, as wide as gate_up"


def test_the_calls_of_a_token_read_a_workers_share() -> None:
    """Of Qwen3-0.6B's matrices each of four has a quarter."""
    found = linear_cases(resolve_model("qwen3-0.6b").spec, [1], 4)
    values = 28 * (2048 + 2 * 1024 + 2048 + 3 * 3072) * 1024 + 151936 * 1024
    for calls in ([case.calls.fused for case in found], [case.calls.unfused for case in found]):
        assert sum(n * case.problem.n * case.problem.k for n, case in zip(calls, found, strict=True)) == values // 4


def test_what_only_other_workers_have_is_listed_and_counted_nowhere() -> None:
    """The last part of a vocabulary that does not divide, and products whose bias the first worker adds."""
    spec = resolve_model("qwen3-0.6b").spec
    mixer = spec.kinds[0].mixer
    assert isinstance(mixer, Attention)
    kind = spec.kinds[0].model_copy(update={"mixer": mixer.model_copy(update={"o_bias": True, "qkv_bias": True})})
    spec = spec.model_copy(update={"kinds": (kind,), "vocab_size": 131})
    found = {case.label: case.calls for case in linear_cases(spec, [1], 4)}
    assert (found["1x48x1024"], found["1x35x1024"]) == (Calls(1, 1), Calls(0, 0))
    assert (found["1x1024x512+bias"], found["1x1024x512"]) == (Calls(28, 28), Calls(0, 0))
    assert found["1x1024x1024+bias"] == Calls(28, 0)
    assert "1x1024x1024" not in found, "every worker adds its own part of qkv's"
    assert not any(calls == Calls(0, 0) for calls in (case.calls for case in linear_cases(spec, [1])))


def test_heads_of_attention_and_of_the_delta_rule_are_shared_out() -> None:
    spec, found = resolve_model("qwen3.5-1b-scaled").spec, []
    for op in ("attention", "linear-attention"):
        for workers in (1, 2):
            asked = {"model": "m", "op": op, "chunks": (1,), "contexts": (64,), "tensor_parallel": workers}
            (case,) = cases(spec, AbConfig.model_validate(asked))
            found.append(case.label)
    assert found == ["1 of 64, 6/1x256", "1 of 64, 3/1x256", "1, 12/4x128x128", "1, 6/2x128x128"]


@pytest.mark.parametrize(
    ("name", "workers", "what"),
    [("qwen3-0.6b", 32, "16 heads"), ("qwen2.5-0.5b", 14, "a width of 4864"), ("qwen3-0.6b", 3, "a width of 151936")],
)
def test_workers_that_a_model_can_not_be_shared_out_to(name: str, workers: int, what: str) -> None:
    spec = resolve_model(name).spec
    for op in ("linear", "attention"):
        config = AbConfig.model_validate({"op": op, "model": "m", "tensor_parallel": workers})
        with pytest.raises(ConfigError, match=f"{what} can't be shared out to {workers} ranks"):
            cases(spec, config)


@pytest.mark.torch
@pytest.mark.compiler
def test_a_workers_winners_are_a_table_of_their_own(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.ab.compare import run_ab, save_winners
    from harness.devices.cpu import physical_cores
    from harness.selection import load_fitting, load_table

    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(HF))
    settings = {"model": "config.json", "tensor_parallel": 2, "backends": ("cpu-gemv",), "device": "cpu"}
    config = AbConfig.model_validate({**settings, "min_blocks": 2, "max_blocks": 2, "sample_s": 1e-5})
    _, record = run_ab(config, tmp_path / "runs", lambda line: None, saves=True)
    path = save_winners(record)
    assert path.name.endswith("-bf16-tp2.yaml")
    table = load_table(path)
    assert table.tensor_parallel == record.config.tensor_parallel == 2
    assert record.config.threads == max(1, len(physical_cores()) // 2), "workers share the cores"
    assert {(entry.problem.n, entry.problem.k) for entry in table.entries} >= {(64, 64), (96, 64), (64, 48), (35, 64)}
    with pytest.raises(ConfigError, match="tensor_parallel 2, here 1"):
        load_fitting(path, record.device, "BF16", force=False)
