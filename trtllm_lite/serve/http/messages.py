"""Defines requests and responses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from trtllm_lite.serve.http.limits import HttpLimits

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
EVENTS = b"text/event-stream; charset=utf-8"
EVENT_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers of every stream; they keep proxies from buffering events."""
_MOST_IGNORED, _LONGEST_IGNORED = 16, 64  # places named by X-Ignored-Fields, and characters of a place, at most
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class EventSink(Protocol):
    """Takes the events of a response that is a stream."""

    def write(self, events: bytes) -> None:
        """Send whole events, at least one."""

    def end(self) -> None:
        """End the stream."""


class Exchange(Protocol):
    """The connection of a request, by which its answer is sent."""

    on_resume: Callable[[], None] | None
    """Called when the client has caught up."""

    @property
    def paused(self) -> bool:
        """Whether the client is so far behind in reading that writes should pause."""

    @property
    def client(self) -> str:
        """The client's address, as the access log shows it."""

    def seconds_since(self, instant: float) -> float:
        """Seconds since an instant of the loop's clock."""

    def open_stream(self, headers: Mapping[str, str]) -> EventSink:
        """Begin the answer to the current request with status 200 and a stream of server-sent events."""


@dataclass(eq=False, slots=True)
class Request:
    """A request. ``headers`` have lower-case names; of equal names the last one counts.

    - ``path`` is not decoded, and has no query
    - ``body`` is empty while the head is looked at
    - ``host``: the server as the client addresses it, a name and usually a port
    - ``max_body_bytes``: the limit of this request's body, if that is less than the server's
    - ``held_bytes``: the bytes that the body counts as held (see ``HttpLimits.max_held_bytes``)
    - ``client``: the client that the request counts for, a holder of a key or an address
    - ``origin_headers``: the response's headers for browsers about pages of other origins (CORS)
    - ``id``: what the client called the request (``X-Request-Id``), or a name made for it; the response has it, too
    - ``version``: the model that was drawn for the request, if several share the name ``model``
    - ``model``, the numbers of tokens and ``warning`` are for the access log: endpoints write what they know of
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytearray
    connection: Exchange
    received: float
    """The time of the request's arrival, by the loop's clock."""
    host: str = ""
    max_body_bytes: int | None = None
    held_bytes: int = 0
    client: str = ""
    origin_headers: dict[str, str] = field(default_factory=dict)
    id: str = ""
    model: str = ""
    version: str = ""
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    warning: str = ""
    ignored: list[str] = field(default_factory=list)
    """Fields of the body that ask for something and were ignored."""

    @property
    def answer_headers(self) -> dict[str, str]:
        """Headers that every answer to the request has, whole or as events."""
        headers = {**self.origin_headers, "X-Request-Id": self.id}
        if self.version:
            headers["X-Model-Version"] = self.version
        if self.ignored:
            headers["X-Ignored-Fields"] = ", ".join([*map(_in_header, self.ignored[:_MOST_IGNORED]), *self._others])
        return headers

    @property
    def _others(self) -> list[str]:
        count = len(self.ignored) - _MOST_IGNORED
        return [f"and {count} more"] if count > 0 else []


@dataclass(eq=False, slots=True)
class Response:
    """A complete response. ``headers`` are added to the usual ones."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: dict[str, str] = field(default_factory=dict)


def head_of(status: int, content_type: bytes, headers: Mapping[str, str], length: int | None, *, close: bool) -> bytes:
    """A response's status line and headers; without ``length`` the body is chunked, or (``close``) ends the connection.

    Values of ``headers`` must have been checked: see :func:`is_header_value`.
    """
    parts = [_STATUS_LINES[status], b"content-type: ", content_type, b"\r\n"]
    if length is not None:
        parts.append(b"content-length: %d\r\n" % length)
    elif not close:
        parts.append(b"transfer-encoding: chunked\r\n")
    if close:
        parts.append(b"connection: close\r\n")
    parts += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
    parts.append(b"\r\n")
    return b"".join(parts)


def announced_bytes(headers: Mapping[str, str]) -> str:
    """The digits of a body's size as the head announces it, at most 15: bodies of more digits are refused anyway.

    The result is "0" if no number is announced.
    """
    length = headers.get("content-length", "0")
    return length[:15] if length.isascii() and length.isdigit() else "0"


def decodes_to_much(limits: HttpLimits) -> Response:
    """The response to a body that is too large after decoding."""
    most = limits.max_decoded_bytes
    message = f"the body's values may take more than {most} bytes of memory, the limit of one body: send less\n"
    return Response(413, message.encode(), TEXT)


def bodies_are_held(limits: HttpLimits) -> Response:
    """The response to a body that does not fit into memory beside those of other requests."""
    busy = f"bodies that take {limits.max_held_bytes} bytes are being worked on already: come back later\n"
    return Response(503, busy.encode(), TEXT, {"Retry-After": "1"})


def _in_header(text: str) -> str:
    """A field's place in a form that fits a header: shortened, with question marks for all but visible ASCII."""
    return "".join(character if "!" <= character <= "~" else "?" for character in text[:_LONGEST_IGNORED])


def is_header_value(value: str, longest: int) -> bool:
    """Whether ``value`` may be in a header: at most ``longest`` visible ASCII characters."""
    return 0 < len(value) <= longest and all("!" <= character <= "~" for character in value)
