"""The server over real sockets: refusals arrive, and clients that do not read cost little."""

import asyncio

import uvloop

from tests.unit.serve.http_wire import Answers, echo
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import Request
from trtllm_lite.serve.http.server import HttpServer

EVENT = b"data: " + b"a" * 1000 + b"\n\n"


def run(scenario, handler=echo, limits=None):
    async def with_server() -> None:
        server = HttpServer(Answers(handler), limits or HttpLimits())
        port = await server.listen("127.0.0.1", 0)
        await scenario(server, port)
        await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(with_server())


def test_a_client_that_sends_too_much_sees_why():
    async def scenario(_: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n" + b"a" * 900_000)
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    run(scenario, limits=HttpLimits(max_body_bytes=1_000_000))


def test_what_a_client_does_not_read_is_not_written():
    written = []
    resumed = asyncio.Event()

    async def handler(request: Request) -> None:
        stream = request.connection.open_stream({})
        request.connection.on_resume = resumed.set
        while not stream.paused:
            stream.write(EVENT)
            written.append(len(EVENT))
            await asyncio.sleep(0)  # as between the steps of an engine
        is_paused.set()
        await resumed.wait()
        stream.end()

    async def scenario(_: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await is_paused.wait()
        assert not resumed.is_set()
        assert sum(written) < 32 << 20  # what the system's buffers take, and a little more
        writer.transport.resume_reading()
        received = await reader.read()
        assert received.count(b"data: ") == len(written)
        writer.close()

    is_paused = asyncio.Event()
    run(scenario, handler)


def test_a_server_that_closes_ends_idle_connections():
    async def scenario(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        closing = asyncio.ensure_future(server.close())
        assert (await reader.read()).endswith(b"GET|/|||")
        await closing
        assert server.num_connections == 0
        writer.close()

    run(scenario)
