"""Sends requests to one server, over as many connections as there are concurrent requests."""

import asyncio
import errno

from trtllm_lite.bench.http_client.connection import Connection
from trtllm_lite.bench.http_client.response import NO_RESPONSE, Response
from trtllm_lite.bench.http_client.server import Server
from trtllm_lite.errors import ServerError

_REFUSED = {errno.ECONNREFUSED: "connection refused", errno.EMFILE: "too many open files"}


class Client:
    """Keeps idle connections, the last used first, and opens others when they are needed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tls = server.tls_context()
        self._free: list[Connection] = []
        self.peer: str | None = None  # the address of the last connection

    async def ask(self, request: bytes) -> Response:
        """The response to ``request``, whatever its status. Raises ServerError if none comes.

        A server may close an idle connection just when a request is sent. The request is then sent again on a new one.
        """
        connection = self._take_free()
        if connection is not None:
            try:
                return await self._ask(connection, request)
            except ServerError as error:
                if error.kind != NO_RESPONSE:
                    raise
        return await self._ask(await self._connect(), request)

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._free:
            connection.close()

    async def _ask(self, connection: Connection, request: bytes) -> Response:
        try:
            response = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._free.append(connection)
        return response

    def _take_free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        server = self._server
        named = server.host if server.tls else None
        try:
            transport, connection = await asyncio.get_running_loop().create_connection(
                Connection, server.address or server.host, server.port, ssl=self._tls, server_hostname=named
            )
        except OSError as error:
            kind = _REFUSED.get(error.errno or 0, "cannot connect")
            raise ServerError(f"cannot connect to {server.name}: {error}", kind) from error
        self.peer = transport.get_extra_info("peername")[0]
        return connection
