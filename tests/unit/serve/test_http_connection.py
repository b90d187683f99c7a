"""A connection reads requests however they are cut, answers them in order, and gives up on clients in time."""

import asyncio

import pytest

from tests.unit.serve.http_wire import Wire, bodies, echo, on_wire, until
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import Request, Response

LIMITS = HttpLimits(max_head_bytes=200, max_headers=4, max_body_bytes=20, max_pipelined=2, max_connections=2)
GET = b"GET /a?b=c HTTP/1.1\r\nHost: h\r\nX-Word: w\r\n\r\n"
WITH_LENGTH = b"POST /a HTTP/1.1\r\nHost: h\r\nX-Word: w\r\nContent-Length: 5\r\n\r\nhello"
IN_CHUNKS = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"

OFFER = WITH_LENGTH.replace(b"X-Word: w", b"X-Word: w\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c")


class Stream:
    """A handler whose answers are streams, which go on until ``end`` is called."""

    def __init__(self) -> None:
        self.num_begun = self.num_cancelled = 0
        self.stream = None

    async def __call__(self, request: Request) -> None:
        self._end = asyncio.Event()
        self.num_begun += 1
        self.stream = request.connection.open_stream({})
        self.stream.write(b"data: first\n\n")
        try:
            await self._end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        self.stream.end()

    def end(self) -> None:
        self._end.set()


@pytest.mark.parametrize("message", [GET, WITH_LENGTH, IN_CHUNKS, OFFER])
def test_requests_are_read_however_they_are_cut(message):
    async def scenario(wire: Wire) -> None:
        expected = None
        for cut in range(1, 2 * len(message)):
            connection, transport = wire.connect()
            for part in ((message + message)[:cut], (message + message)[cut:]):
                connection.data_received(part)
            await until(lambda connection=connection: connection.is_idle)
            answers = bodies(transport.written)
            expected = expected or answers
            assert answers == expected
        connection, transport = wire.connect()
        for byte in message:
            connection.data_received(bytes([byte]))
        await until(lambda: connection.is_idle)
        assert bodies(transport.written) == expected[:1]
        assert len(expected) == 2

    on_wire(scenario)


def test_an_offer_of_another_protocol_is_declined():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(OFFER + OFFER)
        await until(lambda: connection.is_idle)
        assert bodies(transport.written) == [b"POST|/a||w|hello"] * 2

    on_wire(scenario)


def test_pipelined_requests_are_answered_in_order():
    async def handler(request: Request):
        if request.path == "/slow":
            await slow.wait()
        return await echo(request)

    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET.replace(b"/a", b"/slow") + GET + WITH_LENGTH)
        slow.set()
        await until(lambda: connection.is_idle)
        assert bodies(transport.written) == [b"GET|/slow|b=c|w|", b"GET|/a|b=c|w|", b"POST|/a||w|hello"]

    slow = asyncio.Event()
    on_wire(scenario, handler=handler)


def test_an_answer_without_a_body_has_the_length_of_the_body():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET.replace(b"GET", b"HEAD"))
        await until(lambda: connection.is_idle)
        assert b"content-length: 14\r\n" in transport.written
        assert transport.written.endswith(b"\r\n\r\n")

    on_wire(scenario)


@pytest.mark.parametrize(
    "message",
    [
        GET.replace(b"1.1", b"1.0"),
        GET.replace(b"1.1", b"1.0").replace(b"X-Word: w", b"Connection: keep-alive"),
        GET.replace(b"X-Word: w", b"Connection: close"),
    ],
)
def test_a_connection_ends_where_the_client_does_not_know_better(message):
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(message)
        await until(lambda: "close" in transport.calls)
        assert b"connection: close\r\n" in transport.written

    on_wire(scenario)


def test_a_stream_has_no_chunks_in_old_http():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET.replace(b"1.1", b"1.0"))
        await until(lambda: handler.stream is not None)
        handler.end()
        await until(lambda: "close" in transport.calls)
        assert transport.written.endswith(b"\r\n\r\ndata: first\n\n")
        assert b"chunked" not in transport.written

    handler = Stream()
    on_wire(scenario, handler=handler)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 300 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"a" * 300 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"a" * 300, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: a\r\n" * 4 + b"B: b\r\nC: c\r\nD: d\r\nE: e\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 21\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 15 + b"\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 21\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n" + b"a" * 21, 413),
    ],
)
def test_what_cannot_be_read_is_refused(message, status):
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(message)
        assert transport.written.startswith(b"HTTP/1.1 %d " % status)
        assert b"connection: close\r\n" in transport.written
        # The client may still send, but neither without end nor for long.
        written = transport.written
        connection.data_received(GET[:10])
        assert transport.calls == ["write_eof"]
        connection.data_received(b"a" * LIMITS.max_body_bytes)
        assert transport.calls == ["write_eof", "abort"]
        assert transport.written == written

    on_wire(scenario, limits=LIMITS)


def test_more_requests_than_may_be_pipelined_end_the_connection():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET * 3)
        assert transport.calls == []
        connection.data_received(GET)
        connection.data_received(GET[:10])  # these bytes are not read
        for count in (1, 2, 3):
            await until(lambda count=count: handler.num_begun == count)
            handler.end()
        await until(lambda: bool(transport.calls))
        assert transport.calls == ["write_eof"]
        assert transport.written.count(b"HTTP/1.1 200 ") == 3
        assert transport.written.endswith(b"too many requests before earlier ones are answered\n")

    handler = Stream()
    on_wire(scenario, handler=handler, limits=LIMITS)


def test_more_connections_than_there_may_be_are_sent_away():
    async def scenario(wire: Wire) -> None:
        connections = [wire.connect() for _ in range(3)]
        assert [transport.calls for _, transport in connections] == [[], [], ["close"]]
        assert connections[2][1].written.startswith(b"HTTP/1.1 503 ")
        connections[0][0].connection_lost(None)
        assert wire.connect()[1].calls == []

    on_wire(scenario, limits=LIMITS)


def test_a_client_that_asks_is_told_to_go_on():
    expecting = WITH_LENGTH.replace(b"X-Word: w", b"Expect: 100-continue")

    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(expecting[:-5])
        await asyncio.sleep(0)
        assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.data_received(expecting[-5:])
        await until(lambda: handler.stream is not None)
        connection.data_received(expecting)  # in the midst of an answer
        assert transport.written.count(b"100 Continue") == 1

    handler = Stream()
    on_wire(scenario, handler=handler)


def test_a_client_that_goes_away_has_its_request_cancelled():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET + GET)
        await until(lambda: handler.stream is not None)
        connection.connection_lost(None)
        await until(lambda: handler.num_cancelled == 1)
        before = transport.written
        handler.stream.write(b"data: late\n\n")
        assert transport.written == before
        assert wire.server.num_connections == 0

    handler = Stream()
    on_wire(scenario, handler=handler)


def half_close(connection, transport):
    """The client sends nothing more; returns whether the transport keeps its other half open."""
    is_open = connection.eof_received()
    if not is_open:
        transport.close()
        connection.connection_lost(None)
    return is_open


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (GET, [b"GET|/a|b=c|w|"]),
        (WITH_LENGTH + GET, [b"POST|/a||w|hello", b"GET|/a|b=c|w|"]),
        (GET + WITH_LENGTH[:-1], [b"GET|/a|b=c|w|"]),
    ],
)
def test_a_client_that_sends_nothing_more_gets_its_answers(sent, expected):
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(sent)
        assert half_close(connection, transport)
        await until(lambda: bool(transport.calls))
        assert transport.calls == ["close"]
        answers = transport.written.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert bodies(answers) == expected

    on_wire(scenario)


@pytest.mark.parametrize("sent", [b"", GET[:-1], WITH_LENGTH[:-1]])
def test_a_client_that_ends_before_its_request_is_left(sent):
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        if sent:
            connection.data_received(sent)
        assert not half_close(connection, transport)
        assert transport.written == b""
        assert wire.server.num_connections == 0

    on_wire(scenario)


def test_a_client_that_closed_all_of_its_connection_has_its_request_cancelled():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET)
        await until(lambda: handler.stream is not None)
        assert half_close(connection, transport)
        wire.pass_time(2)
        assert transport.calls == []
        transport.tcp_state = 7  # the client's system has answered with a reset
        wire.pass_time(2)
        assert transport.calls == ["abort"]
        connection.connection_lost(None)
        connection.abort_if_reset()  # as by a timer that comes late
        assert transport.calls == ["abort"]

    handler = Stream()
    on_wire(scenario, handler=handler)


@pytest.mark.parametrize(
    ("hosts", "version", "status"),
    [
        (b"", b"1.1", 400),
        (b"Host: h\r\nhost: h\r\n", b"1.1", 400),
        (b"Host: h\r\nX: y\r\nHost: other\r\n", b"1.0", 400),
        (b"Host: h\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", b"1.1", 400),
        (b"Host:\r\n", b"1.1", 200),
        (b"", b"1.0", 200),
    ],
)
def test_a_request_names_one_host(hosts, version, status):
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(b"GET / HTTP/" + version + b"\r\n" + hosts + b"\r\n")
        await until(lambda: bool(transport.written))
        assert transport.written.startswith(b"HTTP/1.1 %d " % status)

    on_wire(scenario)


@pytest.mark.parametrize(
    ("target", "host", "seen"),
    [
        (b"/a", b"one:8000", "one:8000"),
        (b"http://two:80/a", b"one", "two"),
        (b"http://[::1]:80/a", b"one", "::1"),
        (b"/a", b"[::1]:8000", "[::1]:8000"),
    ],
)
def test_the_host_of_a_whole_url_counts(target, host, seen):
    def note(request):
        hosts.append((request.host, request.path))

    async def scenario(wire: Wire) -> None:
        connection, _ = wire.connect()
        connection.data_received(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        await until(lambda: connection.is_idle)
        assert hosts == [(seen, "/a")]

    hosts = []
    on_wire(scenario, check_head=note)


# Tests of deadlines.


def test_slow_requests_are_refused():
    async def scenario(wire: Wire) -> None:
        for message, seconds in ((GET[:-1], limits.head_timeout), (WITH_LENGTH[:-1], limits.body_timeout)):
            connection, transport = wire.connect()
            connection.data_received(message[:5])
            connection.data_received(message[5:])
            wire.pass_time(seconds - 1)
            assert transport.written == b""
            wire.pass_time(2)
            assert transport.written.startswith(b"HTTP/1.1 408 ")
            wire.pass_time(limits.write_timeout + 1)
            assert transport.calls == ["write_eof", "abort"]

    limits = HttpLimits()
    on_wire(scenario, limits=limits)


def test_bytes_that_trickle_in_gain_no_time():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        for byte in GET[:-1]:
            connection.data_received(bytes([byte]))
            wire.pass_time(1)
        assert transport.written.startswith(b"HTTP/1.1 408 ")

    on_wire(scenario)


def test_silent_connections_are_closed():
    async def scenario(wire: Wire) -> None:
        _, new = wire.connect()
        wire.pass_time(limits.head_timeout + 1)
        assert (new.calls, new.written) == (["close"], b"")
        connection, used = wire.connect()
        connection.data_received(GET)
        await until(lambda: connection.is_idle)
        wire.pass_time(limits.idle_timeout - 1)
        assert used.calls == []
        wire.pass_time(2)
        assert used.calls == ["close"]

    limits = HttpLimits()
    on_wire(scenario, limits=limits)


def test_an_answer_may_take_its_time():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(WITH_LENGTH)
        await until(lambda: handler.stream is not None)
        connection.data_received(WITH_LENGTH)  # another request, which waits
        wire.pass_time(100_000)
        assert transport.calls == []

    handler = Stream()
    on_wire(scenario, handler=handler)


def test_a_client_that_does_not_read_is_cut_off():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET)
        await until(lambda: handler.stream is not None)
        connection.pause_writing()
        assert handler.stream.paused
        wire.pass_time(limits.write_timeout + 1)
        assert transport.calls == ["abort"]

    handler, limits = Stream(), HttpLimits()
    on_wire(scenario, handler=handler, limits=limits)


def test_a_client_that_reads_late_has_its_time_again():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET)
        connection.pause_writing()
        await until(lambda: connection.is_idle)
        connection.resume_writing()
        wire.pass_time(limits.idle_timeout - 1)
        assert transport.calls == []
        wire.pass_time(2)
        assert transport.calls == ["close"]
        connection.resume_writing()  # the rest is still unread
        wire.pass_time(limits.write_timeout + 1)
        assert transport.calls == ["close", "abort"]

    limits = HttpLimits()
    on_wire(scenario, limits=limits)


def test_a_client_that_pipelines_and_does_not_read_is_cut_off():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET + GET)
        connection.pause_writing()
        await until(lambda: connection.is_idle)
        wire.pass_time(limits.write_timeout + 1)
        assert transport.calls == ["abort"]

    limits = HttpLimits()
    on_wire(scenario, limits=limits)


def test_a_client_that_reads_slowly_is_not_given_up():
    async def scenario(wire: Wire) -> None:
        connection, transport = wire.connect()
        connection.data_received(GET)
        await until(lambda: handler.stream is not None)
        transport.unread = 3
        connection.pause_writing()
        while transport.unread > 1:
            transport.unread -= 1
            wire.pass_time(limits.write_timeout + 1)
            assert transport.calls == []
        wire.pass_time(limits.write_timeout + 1)
        assert transport.calls == ["abort"]

    handler, limits = Stream(), HttpLimits()
    on_wire(scenario, handler=handler, limits=limits)


def test_a_handler_that_fails_ends_its_connection():
    async def scenario(wire: Wire) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        connection, transport = wire.connect()
        connection.data_received(GET)
        await until(lambda: transport.calls == ["abort"])

    async def fail(_: Request) -> Response:
        raise RuntimeError

    on_wire(scenario, handler=fail)
