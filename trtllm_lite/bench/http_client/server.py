"""Describes a server: its address, and the head of every request."""

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from trtllm_lite.errors import ArgumentError, shown

_PORTS = {"http": 80, "https": 443}
_VERSION = "/v1"


@dataclass(frozen=True)
class Server:
    """A server that speaks OpenAI's protocol. ``prefix`` is the part of its paths in front of ``/v1``.

    ``address`` is the resolved ``host``; without ``address`` each connection resolves ``host``.
    """

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    api_key: str | None = None
    address: str | None = None

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """Host and port, in the form of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context that verifies the server's certificate; None for plain HTTP."""
        return ssl.create_default_context() if self.tls else None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request; ``path`` begins with /v1, ``body`` is JSON."""
        key = () if self.api_key is None else (f"Authorization: Bearer {self.api_key}",)
        typed = (f"Content-Length: {len(body)}", "Content-Type: application/json") if body else ()
        fixed = (f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self.authority}", "Accept: */*")
        return "\r\n".join([*fixed, *key, *typed, "", ""]).encode("latin-1") + body


def parse_base_url(url: str, api_key: str | None = None) -> Server:
    """The server of a URL such as http://localhost:8000, which may end with /v1. Raises ArgumentError for others."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in _PORTS or not parts.hostname or not plain or not url.isascii() or not url.isprintable():
        raise ArgumentError(f"base_url is {shown(url)}: expected a URL such as http://localhost:8000")
    prefix = parts.path.rstrip("/").removesuffix(_VERSION)
    tls = parts.scheme == "https"
    return Server(parts.hostname, _PORTS[parts.scheme] if port is None else port, tls, prefix, api_key)
