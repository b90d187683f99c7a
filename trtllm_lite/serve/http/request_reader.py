"""Reads the requests of one connection, piece by piece."""

from typing import TYPE_CHECKING

import httptools

from trtllm_lite.serve.http.decoded_size import decoded_bytes
from trtllm_lite.serve.http.messages import TEXT, Request, Response, announced_bytes, bodies_are_held, decodes_to_much

if TYPE_CHECKING:
    from trtllm_lite.serve.http.connection import Connection
    from trtllm_lite.serve.http.server import HttpServer


class RequestError(Exception):
    """The bytes are no request, or a request that exceeds a limit; ``response`` is the answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.body)
        self.response = response


class RequestReader:
    """Parses what a connection receives, and passes on requests that are complete (``Connection.take``).

    No body is kept before the server has checked the head. Trailer fields after a chunked body are dropped: they must
    not replace fields of the head (RFC 9110, section 6.5.1).
    """

    def __init__(self, server: "HttpServer", connection: "Connection") -> None:
        self._server = server
        self._limits = server.limits
        self._connection = connection
        self._parser = httptools.HttpRequestParser(self)
        self._error: RequestError | None = None
        self._begin_message()

    def _begin_message(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self.request: Request | None = None
        """The request whose body is arriving; None between bodies."""
        self._refusal: Response | None = None
        self._num_hosts = self._head_bytes = self._num_header_bytes = 0
        self._is_offer = False
        self.is_receiving = False
        """Whether a request has begun to arrive."""
        self.is_in_body = False
        """Whether the head of that request is complete."""

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes. Raises RequestError, after which nothing can be read any more."""
        if not self.is_receiving:
            self.is_receiving = True
            self._connection.set_deadline()
        self._has_read_one = False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            error, self._error = self._error, None  # if kept, its traceback would keep this object alive
            raise error or RequestError(Response(400, b"this is not HTTP/1.1\n", TEXT)) from None
        if not self._has_read_one:  # otherwise the end of another request is among these bytes
            self._head_bytes += len(data)
        if not self.is_in_body and self.is_receiving and self._head_bytes > self._limits.max_head_bytes:
            raise self._too_long_head()

    def close(self) -> None:
        """Release the parser, which refers to this object, so that both are freed without the cycle collector."""
        del self._parser

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse ``data``. Offers of another protocol, such as Java's clients make (h2c), are ignored.

        The parser would treat the bytes after such an offer as the other protocol, although they are the request's
        body. So the request is parsed again without its offer.
        """
        while not self._connection.has_too_many_requests:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                lines = [b"%b %b HTTP/1.1" % (self._parser.get_method(), self._url)]
                lines += [
                    f"{name}: {value}".encode("latin-1")
                    for name, value in self._headers.items()
                    if name not in ("upgrade", "connection")
                ]
                data = b"\r\n".join([*lines, b"", bytes(data[offer.args[0] :])])
                self._parser = httptools.HttpRequestParser(self)
            else:
                return

    # Methods that the parser calls.

    def on_message_begin(self) -> None:
        self._begin_message()
        self.is_receiving = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.max_head_bytes:
            self._fail(self._too_long_head())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > self._limits.max_head_bytes:
            self._fail(self._too_long_head())
        if self.is_in_body:
            return
        if len(self._headers) >= self._limits.max_headers:
            self._refuse(431, f"the request has more than {self._limits.max_headers} headers: send fewer\n")
        key = name.decode("latin-1").lower()
        self._num_hosts += key == "host"
        self._headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        version = self._parser.get_http_version()
        if self._num_hosts > 1 or (self._num_hosts == 0 and version == "1.1"):
            self._refuse(400, f"the request has {self._num_hosts} Host headers: expected one (RFC 9112, section 3.2)\n")
        if self._parser.get_method() == b"CONNECT":
            self._refuse(400, "this is no proxy\n")
        if self._parser.should_upgrade():
            self._is_offer = True
            return
        request = self._read_head()
        self.request = request
        self._refusal = self._server.app.check_head(request)
        announced = announced_bytes(self._headers)
        if self._refusal is not None and (announced != "0" or "transfer-encoding" in self._headers):
            self._fail(RequestError(self._refusal))  # without a body, the refusal is sent in its turn
        if int(announced) > self._max_body_bytes:
            self._fail_by_size(announced)
        self.is_in_body = True
        self._connection.set_deadline()
        if self._headers.get("expect", "").lower() == "100-continue":
            self._connection.send_continue()

    def on_body(self, part: bytes) -> None:
        assert self.request is not None
        body = self.request.body
        body += part
        self._connection.hold(decoded_bytes(part), self.request)
        if len(body) > self._max_body_bytes:
            self._fail_by_size(f"more than {len(body) - 1}")
        if self.request.held_bytes > self._limits.max_decoded_bytes:
            self._fail(RequestError(decodes_to_much(self._limits)))
        if self._server.held_bytes > self._limits.max_held_bytes:
            self._fail(RequestError(bodies_are_held(self._limits)))

    def on_message_complete(self) -> None:
        if self._is_offer:
            return
        request = self.request
        assert request is not None
        request.received = self._server.now()
        is_new = self._parser.get_http_version() == "1.1"
        refusal, keep_alive = self._refusal, is_new and self._parser.should_keep_alive()
        self._has_read_one = True
        self._begin_message()
        self._connection.take(request, refusal, keep_alive=keep_alive, may_chunk=is_new)

    def _read_head(self) -> Request:
        """The request, whose body is still to come. Raises HttpParserError for a target that is no URL."""
        url = httptools.parse_url(self._url)
        host = self._headers.get("host", "")
        if url.host is not None:  # the host of an absolute target replaces the header's (RFC 9112, section 3.2.2)
            host = url.host.decode("latin-1")
        return Request(
            method=self._parser.get_method().decode("latin-1"),
            path=(url.path or b"/").decode("latin-1"),
            query=(url.query or b"").decode("latin-1"),
            headers=self._headers,
            body=bytearray(),
            connection=self._connection,
            received=self._server.now(),
            host=host,
        )

    @property
    def _max_body_bytes(self) -> int:
        assert self.request is not None
        own = self.request.max_body_bytes
        return self._limits.max_body_bytes if own is None else min(own, self._limits.max_body_bytes)

    def _fail_by_size(self, size: str) -> None:
        assert self.request is not None
        self._fail(RequestError(self._server.app.too_large(size, self._max_body_bytes, self.request)))

    def _too_long_head(self) -> RequestError:
        longest = self._limits.max_head_bytes
        message = f"the request's line and headers are longer than {longest} bytes: send less\n"
        return RequestError(Response(431, message.encode(), TEXT))

    def _refuse(self, status: int, message: str) -> None:
        self._fail(RequestError(Response(status, message.encode(), TEXT)))

    def _fail(self, error: RequestError) -> None:
        """Make the parser stop: any exception of a callback ends it with an error of its own."""
        self._error = error
        raise error
