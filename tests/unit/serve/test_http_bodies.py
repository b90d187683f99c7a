"""Heads are looked at before bodies, which are bounded together, and freed with their connections."""

import asyncio
import gc
import tracemalloc
import weakref

import msgspec
import pytest

from tests.unit.serve.http_wire import Wire, bodies, on_wire, until
from trtllm_lite.serve.http.decoded_size import decoded_bytes
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import TEXT, Request, Response

LARGE = 100_000


def head(length: int) -> bytes:
    return b"POST /a HTTP/1.1\r\nHost: h\r\nX-Word: w\r\nContent-Length: %d\r\n\r\n" % length


def refuse(request: Request) -> Response:
    return Response(401, request.path.encode(), TEXT)


@pytest.mark.parametrize("body", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n"])
def test_nothing_of_a_body_is_kept_whose_head_is_not_in_order(body):
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(b"POST /a HTTP/1.1\r\nHost: h\r\n" + body)
        assert transport.calls == ["write_eof"]
        assert transport.written.startswith(b"HTTP/1.1 401 ")
        assert wire.server.held_bytes == 0

    on_wire(scenario, check_head=refuse)


def test_a_head_without_a_body_is_refused_in_its_turn():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: connection.is_idle)
        assert bodies(transport.written) == [b"/a", b"/b"]
        assert transport.calls == []

    on_wire(scenario, check_head=refuse)


def test_what_is_refused_waits_for_the_answers_before_it():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(b"GET /good HTTP/1.1\r\nHost: h\r\n\r\n" + head(LARGE) + b"x" * LARGE)
        await until(lambda: bool(transport.calls))
        assert transport.written.startswith(b"HTTP/1.1 200 ")
        assert bodies(transport.written)[1] == b"/a"
        assert transport.calls == ["write_eof"]

    on_wire(scenario, check_head=lambda request: None if request.path == "/good" else refuse(request))


def test_fields_behind_a_body_replace_none_of_the_head():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        start = b"POST /a HTTP/1.1\r\nHost: h\r\nX-Word: w\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.data_received(start + b"1\r\nb\r\n0\r\nX-Word: evil\r\n\r\n")
        await until(lambda: connection.is_idle)
        assert bodies(transport.written) == [b"POST|/a||w|b"]

    on_wire(scenario)


def test_a_body_takes_little_more_memory_than_it_has_bytes():
    """The largest case is a body in chunks of one byte, which the parser reports one by one, over many connections."""

    async def scenario(wire: Wire) -> None:
        start = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        connections = [wire.connect() for _ in range(10)]
        for connection, _ in connections:
            connection.data_received(start)
        tracemalloc.start()
        for connection, _ in connections:
            for _ in range(10):
                connection.data_received(b"1\r\na\r\n" * 2000)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert wire.server.held_bytes == 2 * 200_000
        assert taken < 2 * 200_000

    on_wire(scenario)


@pytest.mark.parametrize(
    "unit", [b"[],", b"{},", b'{"a":1},', b'"a",', b"1.5,", b'["a"],', b"[[],{}],", b"100000,", b"x"]
)
def test_a_body_counts_for_what_may_be_decoded_of_it(unit):
    text = b'"%b"' % (unit * 10_000) if unit == b"x" else b"[%b0]" % (unit * 10_000)
    msgspec.json.decode(text)
    tracemalloc.start()
    decoded = msgspec.json.decode(text)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoded
    assert taken + len(text) <= decoded_bytes(text)


def test_a_body_that_decodes_to_much_is_refused():
    async def scenario(wire: Wire) -> None:
        for text, status in ((b"[" + b"{}," * 100, 413), (b"x" * 300, 200)):
            connection, transport = wire.connect()
            connection.data_received(head(len(text)) + text)
            await until(lambda transport=transport: transport.written != b"")
            assert transport.written.startswith(b"HTTP/1.1 %d " % status)
            connection.connection_lost(None)
            assert wire.server.held_bytes == 0

    on_wire(scenario, limits=HttpLimits(max_decoded_bytes=10_000))


def test_bodies_of_all_connections_together_are_bounded():
    async def scenario(wire: Wire) -> None:
        first, _ = wire.connect()
        first.data_received(head(2 * LARGE) + b"x" * LARGE)
        assert wire.server.held_bytes == 2 * LARGE  # the body, and what it may become when decoded
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
        assert wire.server.held_bytes == 2 * LARGE
        await until(lambda: third.is_idle)
        assert wire.server.held_bytes == 0

    on_wire(scenario, limits=HttpLimits(max_held_bytes=2 * LARGE + 10))


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
