"""Which URLs are taken, and which proxy stands before them."""

import pytest

from harness.client.server_url import ServerUrl
from harness.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    "url, parsed",
    [
        ("http://127.0.0.1:8000/v1", ServerUrl("http", "127.0.0.1", 8000, "/v1")),
        ("http://gpu-box/v1/", ServerUrl("http", "gpu-box", 80, "/v1")),
        ("https://api.example.org/v1", ServerUrl("https", "api.example.org", 443, "/v1")),
        ("http://[::1]:1234", ServerUrl("http", "::1", 1234, "")),
    ],
)
def test_urls(url: str, parsed: ServerUrl) -> None:
    assert ServerUrl.parse(url) == parsed
    assert ServerUrl.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    "url, what",
    [
        ("127.0.0.1:8000", "no http or https URL"),
        ("ftp://x/v1", "no http or https URL"),
        ("http:///v1", "no http or https URL"),
        ("http://a b/v1", "no http or https URL"),
        ("http://127.0.0.1 :8000/v1", "no http or https URL"),
        ("http://a..b/v1", "no http or https URL"),
        (f"http://{'a' * 64}/v1", "no http or https URL"),
        ("http://x/ü", "no http or https URL"),
        ("http://ü/v1", "no http or https URL"),
        ("http://x:port/v1", "can't be read"),
        ("http://x:99999/v1", "can't be read"),
        ("http://user:secret@x/v1", "more than host, port and path"),
        ("http://x/v1?key=secret", "more than host, port and path"),
    ],
)
def test_refused_without_repeating_a_secret(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        ServerUrl.parse(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.9.1",
        "localhost",
        "[::1]",
        "me.localhost",
        "0.0.0.0",
        "[::]",
        "localhost.",
        "127.1",
        "[::ffff:127.0.0.1]",
    ],
)
def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert ServerUrl.parse(f"http://{host}:8000/v1").proxy is None
    assert ServerUrl.parse(f"https://{host}:8000/v1").proxy is None


def test_another_machine_has_the_environments_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "proxy:3128")
    assert ServerUrl.parse("http://gpu-box:8000/v1").proxy == ServerUrl("http", "proxy", 3128, "")
    assert ServerUrl.parse("https://gpu-box:8000/v1").proxy is None
    monkeypatch.setenv("no_proxy", "gpu-box")
    assert ServerUrl.parse("http://gpu-box:8000/v1").proxy is None


def test_a_proxy_that_is_not_plain_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy:3128")
    with pytest.raises(ConfigError, match="no_proxy") as caught:
        _ = ServerUrl.parse("http://gpu-box:8000/v1").proxy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["http://proxy:99999", "http://[::1", "http://a b:3128", "https://proxy"])
def test_a_proxy_that_can_not_be_asked(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(ConfigError, match="not a plain http one"):
        _ = ServerUrl.parse("http://gpu-box:8000/v1").proxy
