"""Large bodies are looked at early, bounded together, and freed with their connections."""

import asyncio
import gc
import weakref

from tests.unit.serve.http_wire import Wire, on_wire, until
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import TEXT, Response

LARGE = 100_000


def head(length: int) -> bytes:
    return b"POST /a HTTP/1.1\r\nX-Word: w\r\nContent-Length: %d\r\n\r\n" % length


def test_a_large_body_is_refused_before_it_is_there_if_its_head_is_not_in_order():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(head(LARGE * 2) + b"x" * LARGE)
        await until(lambda: bool(transport.calls))
        assert transport.written.startswith(b"HTTP/1.1 401 ")
        assert heads == ["w"]
        connection, transport = wire.connect()
        connection.data_received(head(5) + b"hello")
        await until(lambda: connection.is_idle)
        assert transport.written.startswith(b"HTTP/1.1 200 ")

    def check(headers):
        heads.append(headers["x-word"])
        return Response(401, b"no key", TEXT)

    heads = []
    on_wire(scenario, check_head=check)


def test_bodies_of_all_connections_together_are_bounded():
    async def scenario(wire: Wire) -> None:
        first, _ = wire.connect()
        first.data_received(head(2 * LARGE) + b"x" * LARGE)
        assert wire.server.held_bytes == LARGE
        second, transport = wire.connect()
        second.data_received(head(LARGE) + b"x" * LARGE)
        await until(lambda: bool(transport.calls))
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in transport.written
        second.connection_lost(None)
        first.connection_lost(None)
        assert wire.server.held_bytes == 0
        third, _ = wire.connect()
        third.data_received(head(LARGE) + b"x" * LARGE)
        assert wire.server.held_bytes == LARGE
        await until(lambda: third.is_idle)
        assert wire.server.held_bytes == 0

    on_wire(scenario, limits=HttpLimits(max_held_bytes=LARGE + 10))


def test_a_connection_that_ends_leaves_nothing_behind_for_the_search_of_cycles():
    async def scenario(wire: Wire) -> None:
        connection, _ = wire.connect()
        connection.data_received(head(2 * LARGE) + b"x" * LARGE)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        gone = weakref.ref(connection)
        del connection
        assert gone() is None

    gc.disable()
    try:
        on_wire(scenario)
    finally:
        gc.enable()
