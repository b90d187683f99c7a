"""One connection to a server, which carries one request after the other."""

import asyncio
from time import perf_counter
from typing import cast

from trtllm_lite.bench.http_client.response import Response
from trtllm_lite.errors import ServerError


class Connection(asyncio.Protocol):
    """A connection; ``ask`` sends a request and waits for its response; ``usable`` tells whether another can follow."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._waiting: asyncio.Future[Response] | None = None

    @property
    def usable(self) -> bool:
        """Whether the connection is open and idle."""
        return self._transport is not None and not self._transport.is_closing() and self._waiting is None

    async def ask(self, request: bytes) -> Response:
        """The complete response to ``request``. Raises ServerError if it does not come."""
        assert self._transport is not None
        self._response = Response()
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def close(self) -> None:
        """Close the connection, even during a request."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implements :class:`asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have another base class

    def data_received(self, data: bytes) -> None:
        """Implements :class:`asyncio.Protocol`. This runs for each chunk of each stream."""
        response = self._response
        if response is None:  # bytes without a request
            self.close()
            return
        try:
            response.take(data, perf_counter())
        except ServerError as error:
            self._fail(error)
            return
        if response.done:
            self._succeed(response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements :class:`asyncio.Protocol`."""
        response, self._transport = self._response, None
        if response is None:
            return
        try:
            response.close(perf_counter())
        except ServerError as error:
            self._fail(ServerError(f"{error} ({exc})", error.kind) if exc else error)
        else:
            self._succeed(response)

    def _succeed(self, response: Response) -> None:
        self._response = None
        if not response.reusable:
            self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(response)

    def _fail(self, error: ServerError) -> None:
        self._response = None
        self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
