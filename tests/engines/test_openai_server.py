"""`harness bench` against a scripted server: what a run keeps of it, and what it refuses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_answers import DONE, answer, event, scripted_server, token, usage

from harness.bench import run_bench
from harness.cli.bench import official_line
from harness.errors import ConfigError, HarnessError, MeasurementError, UnavailableError
from harness.records import load_events
from harness.report.runs import recompute_run
from harness.specs.event import FailEvent
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig

TOKENS = 40
FAST = [0.001] * TOKENS


def bench(
    folder: Path, answers: Sequence[dict[str, Any]], engine: dict[str, Any] | None = None,
    script: dict[str, Any] | None = None, **workload: Any,
) -> tuple[RunRecord, list[dict[str, Any]], Path]:  # fmt: skip
    """(record, what the server wrote of each completion, run folder). The first answer is the warm-up's."""
    with scripted_server(folder, answers, **(script or {})) as server:
        config = {
            "name": "t", "model": "qwen3-0.6b", "engine": {"kind": "openai", "url": server.url} | (engine or {}),
            "probe": {"survey_s": 1.0, "reading_s": 0.05},
            "workload": {"input_tokens": 8, "output_tokens": TOKENS, "repeats": len(answers) - 1} | workload,
        }  # fmt: skip
        path, record, _ = run_bench(RunConfig.model_validate(config), folder / "runs", lambda line: None)
        told = [server.told() for _ in answers]
    return record, told, path


def test_a_run_against_a_server(tmp_path: Path) -> None:
    record, told, path = bench(tmp_path, [answer(FAST)] * 3)
    assert record.analysis is not None and record.engine is not None
    assert record.analysis.roof_read_bytes_per_s is None
    assert record.device is not None and record.device.kind == "unknown"
    assert record.engine.resolved == {"id": "m", "max_model_len": 100000, "version": "scripted"}
    assert [r.num_output_tokens for r in record.requests] == [TOKENS] * 2
    assert len({tuple(one["body"]["prompt"]) for one in told}) == 3  # no prompt twice, the warm-up's neither
    assert not [warning for warning in record.analysis.warnings if "token" in warning.replace("warmup_tokens", "")]
    assert recompute_run(path) == record


def test_ours_and_the_official_figures_of_one_request(tmp_path: Path) -> None:
    """The server says who speaks 20 ms before it gives the first token."""
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    of = answer([0.02, *FAST[1:]])
    of["pieces"].insert(0, (0.02, role))
    record, told, _ = bench(tmp_path, [answer(FAST), of])
    (found,) = record.requests
    assert found.official is not None and found.ttft_s is not None and found.connect_s is not None
    sent_s = told[1]["sent_s"]
    assert found.ttft_s - found.official.ttft_s == pytest.approx(sent_s[1] - sent_s[0] - found.connect_s, abs=0.015)
    assert found.official.tpot_s is not None and found.tpot_s is not None
    assert found.official.tpot_s > found.tpot_s  # it has the first token's wait in it
    a = record.analysis
    assert a is not None and a.official_ttft_s == found.official.ttft_s
    assert a.official_throughput_tokens_per_s == pytest.approx(TOKENS / found.official.latency_s)
    # A gap more, and the longest: of 40 gaps the 99th percentile lies between the two longest.
    assert a.official_itl_p99_s is not None and a.itl_p99_s is not None and a.official_itl_s is not None
    assert a.official_itl_p99_s > 0.01 > a.official_itl_s
    assert "tokens/s as vllm bench serve counts them" in official_line(a)


def test_a_server_without_a_usage_has_no_official_throughput(tmp_path: Path) -> None:
    told = [(wait_s, token("a", [1])) for wait_s in FAST]
    record, _, _ = bench(tmp_path, [answer(FAST), {"pieces": [*told, (0.0, DONE)]}])
    a = record.analysis
    assert a is not None and a.official_ttft_s is not None
    assert (a.official_throughput_tokens_per_s, a.official_tpot_s) == (None, None)
    assert ", - as vllm bench serve" in official_line(a)


@pytest.mark.parametrize("together", [TOKENS, TOKENS - 5, 6])
def test_tokens_that_were_held_back_are_no_speed(tmp_path: Path, together: int) -> None:
    """The first so many come in one segment: what the model took for them is not in TPOT."""
    of = answer(FAST)
    head = "".join(text for _, text in of["pieces"][:together])
    of["pieces"] = [[0.05, head], *of["pieces"][together:]]
    record, _, _ = bench(tmp_path, [answer(FAST), answer(FAST), of])
    assert record.analysis is not None and record.analysis.verdict == "invalid"
    assert f"repeat 1 got {together} of its 40 tokens at once at the start" in record.analysis.reason


def test_a_failed_request_is_kept_with_its_reason_and_is_in_no_figure(tmp_path: Path) -> None:
    broken = {"pieces": [[0.0, token("a", [1])]], "end": "cut"}
    record, _, path = bench(tmp_path, [answer(FAST), answer(FAST), broken, answer(FAST)])
    assert record.status == "done" and [r.repeat for r in record.requests] == [0, 2]
    assert record.analysis is not None
    (failed,) = record.analysis.failed_requests
    assert failed.repeat == 1 and "cut it off" in failed.reason
    assert "1 of 3 requests failed" in record.analysis.warnings[0]
    assert [e.repeat for e in load_events(path) if isinstance(e, FailEvent)] == [1]


def test_nothing_but_failures_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="all 2 requests failed; the first: the server answers 500"):
        bench(tmp_path, [answer(FAST), *[{"status": 500, "body": "no"}] * 2])


def test_a_server_that_fails_at_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"the server answers 500 .*no such prompt") as caught:
        bench(tmp_path, [{"status": 500, "body": '{"message": "no such prompt"}'}] * 2)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "of, reason",
    [
        (answer(FAST[:33]), "gave 33 tokens instead of the fixed 40"),
        (
            {"pieces": [*[(0.0, token("a", [1])) for _ in FAST], (0.0, usage(8, TOKENS, cached=5)), (0.0, DONE)]},
            "5 of its 8 prompt tokens in a cache",
        ),
    ],
)
def test_what_makes_a_run_invalid(tmp_path: Path, of: dict[str, Any], reason: str) -> None:
    record, _, _ = bench(tmp_path, [answer(FAST), of])
    assert record.analysis is not None
    assert record.analysis.verdict == "invalid" and reason in record.analysis.reason


def test_a_server_that_tells_no_ids(tmp_path: Path) -> None:
    """30 chunks of text and a usage of 40: a token's time is known, a chunk's tokens are not."""
    texts = [(0.001, token("ab ")) for _ in range(30)]
    record, _, _ = bench(tmp_path, [answer(FAST), {"pieces": [*texts, (0.0, usage(8, TOKENS)), (0.0, DONE)]}])
    (found,) = record.requests
    assert (found.num_output_tokens, found.num_chunks, found.token_source) == (TOKENS, 30, "usage")
    assert record.analysis is not None
    assert any("40 tokens by its usage in 30 chunks" in warning for warning in record.analysis.warnings)


def test_ids_and_usage_that_contradict_each_other(tmp_path: Path) -> None:
    of = answer(FAST)
    of["pieces"][-2] = (0.0, usage(8, TOKENS + 2))
    record, _, _ = bench(tmp_path, [answer(FAST), of])
    assert record.analysis is not None
    assert "repeat 0: 40 tokens came, the server's usage says 42" in record.analysis.warnings


def test_several_tokens_in_a_chunk(tmp_path: Path) -> None:
    pairs = [(0.001, token("ab ", [1, 2])) for _ in range(TOKENS // 2)]
    record, _, _ = bench(tmp_path, [answer(FAST), {"pieces": [*pairs, (0.0, usage(8, TOKENS)), (0.0, DONE)]}])
    (found,) = record.requests
    assert (found.num_output_tokens, found.num_chunks, found.most_tokens_a_chunk) == (TOKENS, 20, 2)
    assert record.analysis is not None and any("up to 2 tokens" in w for w in record.analysis.warnings)


def test_one_token_has_no_tpot(tmp_path: Path) -> None:
    record, _, _ = bench(tmp_path, [answer([0.0]), answer([0.0])], output_tokens=1, warmup_tokens=1)
    (found,) = record.requests
    assert found.tpot_s is None and found.official is not None and found.official.tpot_s is None


def test_chat_with_texts(tmp_path: Path) -> None:
    """Lengths by the server's tokenizer; the warm-up has no prompt of the run."""
    workload = {"input_tokens": None, "prompts": ["one two three", "four five six"]}
    record, told, _ = bench(tmp_path, [answer(FAST)] * 3, {"api": "chat"}, {"tokens_a_word": 2}, **workload)
    assert [r.num_prompt_tokens for r in record.requests] == [6, 6]
    asked = [one["body"]["messages"][0]["content"] for one in told]
    assert asked == ["Warm-up. three two one", "one two three", "four five six"]
    assert told[1]["path"] == "/v1/chat/completions"


def test_prompts_that_are_asked_twice_are_named(tmp_path: Path) -> None:
    workload = {"input_tokens": None, "prompts": ["one two"]}
    record, _, _ = bench(tmp_path, [answer(FAST)] * 3, {}, {"tokens_a_word": 1}, **workload)
    assert record.analysis is not None
    assert any("2 requests share 1 prompts" in warning for warning in record.analysis.warnings)


def test_a_text_whose_length_nobody_tells(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="how many tokens a text is"):
        bench(tmp_path, [answer(FAST)] * 2, input_tokens=None, prompts=["one two"])


@pytest.mark.parametrize(
    "engine, what",
    [
        ({"api": "chat"}, "chat takes texts"),
        ({"served_model": "other"}, "has no model 'other'"),
        ({"url": "http://user:secret@127.0.0.1/v1"}, "more than host, port and path"),
    ],
)
def test_what_can_not_be_asked(tmp_path: Path, engine: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        bench(tmp_path, [answer(FAST)] * 2, engine)


@pytest.mark.torch
def test_a_server_on_this_machines_cpu_has_a_roof(tmp_path: Path) -> None:
    record, _, path = bench(tmp_path, [answer(FAST)] * 2, {"device": "cpu"})
    kinds = [event.event for event in load_events(path)]
    assert kinds.count("contention") == 2 and kinds.index("contention") < kinds.index("send")  # of readings alone
    assert record.analysis is not None and record.probe is not None
    assert record.analysis.roof_read_bytes_per_s is not None and record.analysis.util_frac is not None
    assert record.analysis.verdict == "invalid"  # 1 ms a token is faster than this model can be read
