"""The client against a scripted server in another process: whole answers, and every way not to be one."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from scripted_answers import DONE, answer, event, scripted_server, token, usage

from harness.client.connection import clock_s
from harness.client.requests import Client, find_served_model, request_body
from harness.errors import ConfigError, RequestFailed, UnavailableError
from harness.specs.request import Chunk, Request
from harness.specs.run import OpenAIEngine

IDS = Request(None, ((3, 1, 2),), 4, ignore_eos=True)
LIMITS = {"connect_limit_s": 5.0, "first_token_limit_s": 5.0, "token_limit_s": 5.0}


def ask(
    folder: Path, of: dict[str, Any], request: Request = IDS, **settings: Any
) -> tuple[list[Chunk], dict[str, Any]]:
    """(chunks, what the server wrote) of one completion."""
    with scripted_server(folder, [of]) as server:
        engine = OpenAIEngine.model_validate({"kind": "openai", "url": server.url} | LIMITS | settings)
        client = Client(engine)
        with client.connect() as exchange:
            client.send(exchange, request_body(engine, "m", request))
            chunks = list(client.chunks(exchange, request.max_output_tokens))
        return chunks, server.told()


def refusal(folder: Path, of: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(RequestFailed) as caught:
        ask(folder, of, **settings)
    return caught.value.what


def pieces(*texts: str, end: str = "done") -> dict[str, Any]:
    return {"pieces": [[0.0, text] for text in texts], "end": end}


def test_an_answer_comes_whole(tmp_path: Path) -> None:
    before_s = clock_s()
    chunks, told = ask(tmp_path, answer([0.0, 0.01, 0.0], prompt=3))
    assert [chunk.token_ids for chunk in chunks] == [(1,), (2,), (3,), ()]
    assert chunks[-1].usage is not None and chunks[-1].usage.output_tokens == 3
    times_s = [chunk.time_s for chunk in chunks]
    assert times_s == sorted(times_s) and before_s < told["sent_s"][0] <= times_s[0] <= clock_s()


def test_what_is_asked_for(tmp_path: Path) -> None:
    _, told = ask(tmp_path, answer([0.0]), extra_body={"top_k": 1, "temperature": 0.5})
    assert told["path"] == "/v1/completions"
    assert told["body"] == {
        "model": "m", "prompt": [3, 1, 2], "max_tokens": 4, "min_tokens": 4, "ignore_eos": True, "temperature": 0.5,
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True, "top_k": 1,
    }  # fmt: skip


def test_a_plain_server_is_asked_for_nothing_of_vllm(tmp_path: Path) -> None:
    _, told = ask(tmp_path, answer([0.0]), Request("hi", None, 4, True), api="chat", extensions="none")
    assert told["path"] == "/v1/chat/completions"
    assert told["body"] == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0.0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_each_request_has_a_connection_of_its_own(tmp_path: Path) -> None:
    with scripted_server(tmp_path, [answer([0.0])]) as server:
        engine = OpenAIEngine(kind="openai", url=server.url)
        client, ports = Client(engine), set()
        for _ in range(3):
            with client.connect() as exchange:
                client.send(exchange, request_body(engine, "m", IDS))
                list(client.chunks(exchange, IDS.max_output_tokens))
            ports.add(server.told()["peer_port"])
    assert len(ports) == 3


def test_several_events_in_one_piece_arrive_together(tmp_path: Path) -> None:
    chunks, _ = ask(tmp_path, pieces(token("a", [1]) + token("b", [2]) + DONE))
    assert [chunk.token_ids for chunk in chunks] == [(1,), (2,)]
    assert chunks[0].time_s == chunks[1].time_s


def test_an_event_in_two_pieces_arrives_with_the_second(tmp_path: Path) -> None:
    whole = token("é", [1])
    cut = whole.index("Ã") + 1  # within the character
    parts: Sequence[Any] = [[0.0, whole[:cut]], [0.2, whole[cut:]], [0.0, DONE]]
    chunks, told = ask(tmp_path, {"pieces": parts})
    assert chunks[0].text == "é" and chunks[0].time_s > told["sent_s"][1]


@pytest.mark.parametrize(
    "of, what",
    [
        (pieces(token("a", [1])), "ended before its"),
        (pieces(token("a", [1]), "data: {"), "ended within an event"),
        (pieces(token("a", [1]), end="cut"), "cut it off"),
        (pieces(token("a", [1]), end="reset"), "reset the connection|cut it off"),
        (pieces(event({"error": {"message": "engine died"}})), "engine died"),
        (pieces("data: \xff\n\n"), "not UTF-8"),
        (pieces("oops\n\n"), "no server-sent event"),
        (pieces('event: error\ndata: {"message": "engine died"}\n\n'), "within the stream: engine died"),
        (pieces(*[token("a")] * 80), "does not end: 73 tokens"),
        (pieces("data: " + "x" * (5 << 20)), "larger than 4 MiB"),
        ({"status": 400, "body": '{"error": {"message": "too long a prompt"}}'}, "400 .*too long a prompt"),
        ({"status": 503, "body": "<html>\n busy </html>"}, "503 .*<html> busy </html>"),
        ({"status": 302, "body": ""}, "302 .*no reason given"),
        ({"status": 500, "body": "\x1b[2Jgone"}, "500 .*: \ufffd\\[2Jgone"),
    ],
)
def test_what_is_no_whole_answer(tmp_path: Path, of: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestFailed, match=what):
        ask(tmp_path, of)


def test_a_stall_ends_at_the_limit_between_tokens(tmp_path: Path) -> None:
    started_s = clock_s()
    what = refusal(tmp_path, pieces(token("a", [1]), end="stall"), token_limit_s=0.2)
    assert "nothing came within the limit" in what and clock_s() - started_s < 4.0


def test_the_first_tokens_limit_is_its_own_and_no_sign_of_life_moves_it(tmp_path: Path) -> None:
    """Comments and the role come often enough for any limit between two reads."""
    alive = {"pieces": [[0.05, ": ping\n\n"] for _ in range(40)]}
    assert "nothing came within the limit" in refusal(tmp_path, alive, first_token_limit_s=0.3)


def test_a_key_is_sent_and_never_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-secret")
    _, told = ask(tmp_path, answer([0.0]), api_key_env="TEST_KEY")
    assert told["headers"]["Authorization"] == "Bearer sk-secret"
    client = Client(OpenAIEngine(kind="openai", url="http://127.0.0.1:1/v1", api_key_env="TEST_KEY"))
    assert client.without_key("wrong key sk-secret!") == "wrong key ***!"


@pytest.mark.parametrize("length", range(1, 10))
def test_a_key_that_was_cut_off_is_not_told_either(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-secret")
    client = Client(OpenAIEngine(kind="openai", url="http://127.0.0.1:1/v1", api_key_env="TEST_KEY"))
    part = "sk-secret"[:length]
    kept = part if length < 4 else "***"
    assert client.without_key(f"wrong {part}") == f"wrong {kept}"
    assert client.without_key(f"'wrong {part}'") == f"'wrong {kept}'"
    assert client.without_key(f"wrong {part}-like words") == (
        "wrong ***-like words" if length == 9 else f"wrong {part}-like words"
    )


def test_a_server_that_repeats_the_key_in_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-secret")
    chunks, _ = ask(tmp_path, pieces(token("your key is sk-secret", [1]), DONE), api_key_env="TEST_KEY")
    assert [chunk.text for chunk in chunks] == ["your key is ***"]


@pytest.mark.parametrize("value", ["abc\n", "abc\r", "a bc", "schlüssel", "\x7f"])
def test_a_key_that_no_header_can_carry(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", value)
    with pytest.raises(ConfigError, match="TEST_KEY holds a blank") as caught:
        Client(OpenAIEngine(kind="openai", url="http://127.0.0.1:1/v1", api_key_env="TEST_KEY"))
    assert value not in str(caught.value) and value.strip() not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"extra_body": {"api_key": "x"}}, {"token_limit_s": 1e20}, {"connect_limit_s": 1e7}]
)
def test_settings_that_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"may be a secret|less than or equal to 1000000"):
        OpenAIEngine.model_validate({"kind": "openai", "url": "http://127.0.0.1:1/v1"} | settings)


def test_a_key_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="TEST_NO_KEY is not set"):
        Client(OpenAIEngine(kind="openai", url="http://127.0.0.1:1/v1", api_key_env="TEST_NO_KEY"))


def test_nobody_at_the_port() -> None:
    with socket.socket() as held:  # bound and not listening: no other process can have it
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(UnavailableError, match="Connection refused"):
            find_served_model(Client(OpenAIEngine(kind="openai", url=url)), None)


def test_a_port_that_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        client = Client(OpenAIEngine(kind="openai", url=url, connect_limit_s=0.3))
        with pytest.raises(UnavailableError, match="nothing came within the limit"):
            find_served_model(client, None)


@pytest.mark.parametrize(
    "models, wanted, what",
    [
        (["a", "b"], None, "has 2 models: a, b"),
        (["a"], "c", "has no model 'c'"),
        ([], None, "has 0 models: none"),
        ([None], None, "has 0 models: none"),
    ],
)
def test_which_model(tmp_path: Path, models: list[str], wanted: str | None, what: str) -> None:
    with (
        scripted_server(tmp_path, [answer([0.0])], models=models) as server,
        pytest.raises(ConfigError, match=what),
    ):
        find_served_model(Client(OpenAIEngine(kind="openai", url=server.url)), wanted)


def test_the_usage_behind_done_is_not_waited_for(tmp_path: Path) -> None:
    chunks, _ = ask(tmp_path, pieces(token("a", [1]), DONE, usage(3, 1), end="stall"))
    assert [chunk.token_ids for chunk in chunks] == [(1,)]
