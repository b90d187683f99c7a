import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from trtllm_lite.runtime.core import core
from trtllm_lite.serve.http.outbox import Outbox, Outlet

SMALL_BUFFER = 4096  # bytes; what is written beyond it is left to the transport


class Pair:
    """A connection: the server's transport and outlet, and the client's socket."""

    def __init__(self, transport: asyncio.Transport, outlet: Outlet, client: socket.socket) -> None:
        self.transport = transport
        self.outlet = outlet
        self.client = client
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data
        self.outlet.write(data)


async def connect(outbox: Outbox) -> Pair:
    served, client = socket.socketpair()
    for end in (served, client):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, served)
    return Pair(transport, Outlet(outbox, transport), client)


async def read(pair: Pair, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += await asyncio.get_running_loop().sock_recv(pair.client, size - len(found))
    return found


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Outbox], Awaitable[None]]], None]:
    def run(scenario: Callable[[Outbox], Awaitable[None]]) -> None:
        async def outer() -> None:
            await scenario(Outbox(asyncio.get_running_loop()))

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(outer())

    return run


@pytest.mark.parametrize("seed", range(5))
def test_clients_get_what_is_written_to_them_in_order_however_slowly_they_read(run, seed):
    rng = random.Random(seed)

    async def scenario(outbox):
        pairs = [await connect(outbox) for _ in range(5)]
        read_of = dict.fromkeys(pairs, b"")
        for _ in range(200):
            for pair in rng.sample(pairs, rng.randint(1, 5)):
                pair.write(os.urandom(rng.choice((1, 10, 300, 3 * SMALL_BUFFER))))
            if rng.random() < 0.2:
                rng.choice(pairs).outlet.flush()
            if rng.random() < 0.7:
                await asyncio.sleep(0)
            reader = rng.choice(pairs)
            size = min(len(reader.written) - len(read_of[reader]), rng.randint(0, SMALL_BUFFER))
            read_of[reader] += await read(reader, size)
        for pair in pairs:
            read_of[pair] += await read(pair, len(pair.written) - len(read_of[pair]))
            assert read_of[pair] == pair.written
            pair.transport.close()
            assert await asyncio.get_running_loop().sock_recv(pair.client, 1) == b""

    run(scenario)


def test_what_is_flushed_comes_before_the_end_of_a_connection(run):
    async def scenario(outbox):
        pair = await connect(outbox)
        pair.write(b"last words")
        pair.outlet.flush()
        pair.transport.close()
        assert await read(pair, 10) == b"last words"
        assert await asyncio.get_running_loop().sock_recv(pair.client, 1) == b""

    run(scenario)


def test_nothing_is_sent_for_a_connection_that_was_aborted_whose_socket_number_another_has(run):
    async def scenario(outbox):
        gone, stays = await connect(outbox), await connect(outbox)
        gone.write(b"to nobody")
        gone.transport.abort()
        stays.write(b"to somebody")
        await asyncio.sleep(0)
        next_one = await connect(outbox)
        await asyncio.sleep(0)
        next_one.write(b"hello")
        assert await read(stays, 11) == b"to somebody"
        assert await read(next_one, 5) == b"hello"

    run(scenario)


def test_a_client_that_went_away_ends_its_connection_alone(run):
    async def scenario(outbox):
        gone, stays = await connect(outbox), await connect(outbox)
        gone.client.close()
        for pair in (gone, stays):
            pair.write(b"hello")
        assert await read(stays, 5) == b"hello"
        while not gone.transport.is_closing():
            await asyncio.sleep(0)

    run(scenario)


def test_send_each_says_how_much_each_socket_took():
    with socket.socketpair()[0] as broken:
        sender, receiver = socket.socketpair()
        with sender, receiver:
            data = [b"x" * (16 << 20), b"abc", b"", b"abc"]
            taken = core().send_each([sender.fileno(), broken.fileno(), sender.fileno(), -1], data)
            assert 0 < taken[0] < len(data[0])
            assert taken[1:] == [0, 0, 0]
    with pytest.raises(ValueError, match="as many"):
        core().send_each([1], [])
