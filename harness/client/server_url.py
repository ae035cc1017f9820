"""Where a server answers, and which proxy stands before it."""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass
from ipaddress import ip_address

from harness.errors import ConfigError

_PATH = re.compile(r"[!-~]*")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True)
class ServerUrl:
    """scheme://host:port and the path before /completions."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> ServerUrl:
        """`http://127.0.0.1:8000/v1`. Raises ConfigError for what is no such URL, and for one with a secret in it."""
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as fault:
            raise ConfigError(f"the URL {url!r} can't be read: {fault}", "write http://host:port/v1") from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError("the URL has more than host, port and path", "a key's variable is named in api_key_env")
        if parts.scheme not in ("http", "https") or not _is_host(parts.hostname) or not _PATH.fullmatch(parts.path):
            raise ConfigError(f"{url!r} is no http or https URL", "write http://host:port/v1")
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, str(parts.hostname), default if port is None else port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """This machine."""
        host = self.host.rstrip(".")
        with contextlib.suppress(ValueError):
            address = ip_address(host)
            mapped = getattr(address, "ipv4_mapped", None) or address
            return mapped.is_loopback or mapped.is_unspecified
        with contextlib.suppress(OSError):  # 127.1 and other short forms
            return ip_address(socket.inet_aton(host)).is_loopback
        return host == "localhost" or host.endswith(".localhost")

    @property
    def proxy(self) -> ServerUrl | None:
        """The environment's for this server; never one for this machine, whatever no_proxy says."""
        if self.is_loopback or urllib.request.proxy_bypass(self.netloc):
            return None
        found = urllib.request.getproxies().get(self.scheme)
        if found is None:
            return None
        with contextlib.suppress(ValueError):
            proxy = urllib.parse.urlsplit(found if "://" in found else f"http://{found}")
            if proxy.scheme == "http" and _is_host(proxy.hostname) and not proxy.username:
                return ServerUrl("http", str(proxy.hostname), proxy.port or 80, "")
        what = f"the {self.scheme} proxy of the environment is not a plain http one without a password"
        raise ConfigError(what, f"add {self.host} to no_proxy, or name a plain one")


def _is_host(name: str | None) -> bool:
    """Something that can be looked up: the resolver raises errors of its own for the rest."""
    if name is None or ":" in name:
        return name is not None and _IPV6.fullmatch(name) is not None
    return all(_LABEL.fullmatch(label) for label in name.removesuffix(".").split("."))
