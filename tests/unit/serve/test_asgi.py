"""Requests from an ASGI server are answered, bounded and cancelled like those of the server's own connections."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.unit.serve.asgi import Call
from tests.unit.serve.http_wire import Answers, echo, until
from tests.unit.serve.served import Asker, ask
from trtllm_lite.serve.http.asgi import AsgiServer
from trtllm_lite.serve.http.limits import HIGH_WATER, HttpLimits
from trtllm_lite.serve.http.messages import TEXT, Request, Response

JSON = [(b"content-type", b"application/json")]


def serving(talk: Callable[[AsgiServer], Awaitable[None]], handler: Any = echo, **options: Any) -> None:
    """Run ``talk`` with the ASGI application of a handler."""
    limits = options.pop("limits", HttpLimits())

    async def run() -> None:
        await talk(AsgiServer(Answers(handler, **options), limits))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({"path": "/v1/models/a b", "raw_path": b"/v1/models/a%20b"}, "/v1/models/a%20b"),
        ({"path": "/v1/models/a b"}, "/v1/models/a%20b"),
        ({"path": "/llm/v1", "root_path": "/llm"}, "/v1"),
        ({"path": "/llm", "root_path": "/llm"}, "/"),
        ({"path": "/v1", "root_path": "/llm"}, "/v1"),
    ],
)
def test_a_request_arrives_as_it_was_sent(scope: dict[str, Any], path: str) -> None:
    async def talk(app: AsgiServer) -> None:
        call = Call(app, "POST", query_string=b"a=1", headers=[(b"X-Word", b"no"), (b"x-word", b"w")], **scope)
        call.body(b"one ", more=True)
        call.body(b"two")
        await call.task
        assert (call.status, call.received.decode()) == (200, f"POST|{path}|a=1|w|one two")
        assert call.headers == {b"content-type": TEXT, b"content-length": b"%d" % len(call.received)}

    serving(talk)


def test_the_answer_to_head_has_no_body() -> None:
    async def talk(app: AsgiServer) -> None:
        call = Call(app, "HEAD")
        call.body(b"")
        await call.task
        assert call.received == b""
        assert int(call.headers[b"content-length"]) > 0

    serving(talk)


@pytest.mark.parametrize(
    ("headers", "parts", "status"),
    [
        ([(b"content-length", b"11")], [], 413),
        ([(b"content-length", b"9" * 40)], [], 413),
        ([], [b"x" * 6, b"x" * 5], 413),
        ([], [b"x" * 9], 503),
    ],
)
def test_a_body_beyond_a_limit_is_refused_before_it_is_whole(
    headers: list[tuple[bytes, bytes]], parts: list[bytes], status: int
) -> None:
    async def talk(app: AsgiServer) -> None:
        call = Call(app, "POST", headers=headers)
        for part in parts:
            call.body(part, more=True)
        await call.task
        assert call.status == status
        again = Call(app, "POST")  # what was refused is not held any more
        again.body(b"x" * 4)
        await again.task
        assert again.status == 200

    serving(talk, limits=HttpLimits(max_body_bytes=10, max_held_bytes=8 if status == 503 else 100))


def test_a_request_is_refused_before_its_body_comes_if_its_head_is_not_in_order() -> None:
    def check(request: Request) -> Response:
        return Response(401, request.headers["x-word"].encode(), TEXT)

    async def talk(app: AsgiServer) -> None:
        call = Call(app, "POST", headers=[(b"x-word", b"w")])
        await call.task  # the call ends without a byte of the body
        assert (call.status, call.received) == (401, b"w")

    serving(talk, check_head=check)


class Held:
    """A handler whose streams a test writes; ``ends`` says how each of its requests ended."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ends: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, request: Request) -> None:
        self.requests.append(request)
        self.stream = request.connection.open_stream({"X-Request-Id": "1"})
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        self.stream.end()
        self.ends.append("whole")


def streaming(talk: Callable[[Held, Call], Awaitable[None]]) -> None:
    """Run ``talk`` with a handler, and a call whose stream it has opened."""

    async def run() -> None:
        held = Held()
        call = Call(AsgiServer(Answers(held), HttpLimits()))
        call.body(b"")
        await call.until(lambda call: len(call.sent) == 1)
        await talk(held, call)

    asyncio.run(run())


def test_events_are_sent_as_they_come_and_what_comes_meanwhile_together() -> None:
    async def talk(held: Held, call: Call) -> None:
        assert call.headers[b"cache-control"] == b"no-store"
        assert call.headers[b"x-request-id"] == b"1"
        held.stream.write(b"a")
        await call.until(lambda call: call.received == b"a")
        held.stream.write(b"b")
        held.stream.write(b"c")
        held.go.set()
        await call.task
        assert [message["body"] for message in call.sent[1:]] == [b"a", b"bc", b""]
        assert [message["more_body"] for message in call.sent[1:]] == [True, True, False]
        assert held.ends == ["whole"]

    streaming(talk)


def test_a_client_that_reads_slowly_pauses_its_stream() -> None:
    async def talk(held: Held, call: Call) -> None:
        (request,) = held.requests
        resumed = asyncio.Event()
        request.connection.on_resume = resumed.set
        call.reads.clear()
        held.stream.write(b"x")
        await asyncio.sleep(0)
        assert not request.connection.paused
        held.stream.write(b"x" * HIGH_WATER)
        held.stream.write(b"x")
        assert request.connection.paused
        call.reads.set()
        await until(resumed.is_set)
        assert not request.connection.paused
        held.go.set()
        await call.task
        assert len(call.received) == HIGH_WATER + 2

    streaming(talk)


@pytest.mark.parametrize("how", ["leave", "send", "cancel"])
def test_a_client_that_goes_away_ends_its_request(how: str) -> None:
    async def talk(held: Held, call: Call) -> None:
        if how == "leave":
            call.leave()
        elif how == "send":
            call.error = BrokenPipeError()
            held.stream.write(b"a")
        else:
            call.task.cancel()
        await asyncio.wait([call.task])
        await until(lambda: held.ends == ["cancelled"])
        assert call.task.cancelled() == (how == "cancel")

    streaming(talk)


def test_a_client_that_goes_away_before_its_body_is_whole_asks_nothing() -> None:
    async def talk(app: AsgiServer) -> None:
        call = Call(app, "POST")
        call.body(b"a", more=True)
        call.leave()
        await call.task
        assert call.sent == []

    serving(talk)


def test_the_server_begins_and_ends_and_takes_no_websockets() -> None:
    async def talk(app: AsgiServer) -> None:
        life = Call(app, type="lifespan")
        life.leave()
        life.leave()
        await life.task
        assert [message["type"] for message in life.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        socket = Call(app, type="websocket")
        await socket.task
        assert socket.sent == [{"type": "websocket.close"}]

    serving(talk)


def test_the_application_answers_and_cancels_by_asgi() -> None:
    async def talk(asker: Asker) -> None:
        app = AsgiServer(asker.app, HttpLimits())
        models = Call(app, path="/v1/models")
        models.body(b"")
        await models.task
        assert [model["id"] for model in json.loads(models.received)["data"]] == ["tiny"]
        lost = Call(app, path="/nothing")
        lost.body(b"")
        await lost.task
        assert (lost.status, json.loads(lost.received)["error"]["code"]) == (404, "not_found")
        asker.loop.num_steps_allowed = 0
        left = Call(app, "POST", "/v1/completions", headers=JSON)
        left.body(json.dumps({"prompt": [1], "max_tokens": 4, "stream": True, "ignore_eos": True}).encode())
        while not asker.loop.running:
            await asyncio.sleep(0)
        left.leave()
        await left.task
        assert left.sent == []
        while asker.loop.running:
            await asyncio.sleep(0)

    ask(talk)


def test_another_implementation_of_asgi_gets_the_same_answers() -> None:
    async def talk(asker: Asker) -> None:
        transport = httpx.ASGITransport(AsgiServer(asker.app, HttpLimits()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"prompt": [1], "max_tokens": 4, "ignore_eos": True}
            whole = await client.post("/v1/completions", json=body)
            assert (whole.status_code, whole.json()["usage"]["completion_tokens"]) == (200, 4)
            streamed = await client.post("/v1/completions", json={**body, "stream": True})
            assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert streamed.text.endswith("data: [DONE]\n\n")
            refused = await client.post("/v1/completions", content=b"{")
            assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")

    ask(talk)
