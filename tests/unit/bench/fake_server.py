"""A server of OpenAI's protocol without a model: a test gives its answers, byte by byte."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "fake"


@dataclass(frozen=True)
class Request:
    """A received request; ``connection`` is the number of the connection that carried it."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int


@dataclass(frozen=True)
class Reply:
    """Pieces that are written one after the other; the connection is then closed if ``close``."""

    pieces: Sequence[bytes]
    close: bool = False


Answer = Callable[[Request], Reply | Awaitable[Reply]]


@dataclass
class FakeServer:
    """The server's address, and the requests that it has received."""

    base_url: str
    port: int
    requests: list[Request] = field(default_factory=list)

    @property
    def asked(self) -> list[Request]:
        """The requests that ask for tokens."""
        return [request for request in self.requests if request.method == "POST"]


def head(*lines: str, status: str = "200 OK") -> bytes:
    """The head of a response."""
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def whole(content: Any, *lines: str, status: str = "200 OK") -> Reply:
    """A response with a JSON body of known length."""
    body = json.dumps(content).encode()
    return Reply([head("Content-Type: application/json", f"Content-Length: {len(body)}", *lines, status=status) + body])


def data(content: Any) -> bytes:
    """An event of a stream."""
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def chunked(pieces: Sequence[bytes]) -> list[bytes]:
    """The pieces as HTTP/1.1 chunks, followed by the empty last chunk."""
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""]]


def streamed(events: Sequence[bytes], *lines: str) -> Reply:
    """A response that streams events in chunks."""
    return Reply([head("Content-Type: text/event-stream", "Transfer-Encoding: chunked", *lines), *chunked(events)])


def usage_of(body: dict[str, Any]) -> dict[str, Any]:
    """The usage that a server reports if it generates all tokens asked for."""
    prompt = len(body["prompt"]) if "prompt" in body else 7
    return {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}


def token_events(body: dict[str, Any], tokens_per_event: int = 1) -> list[bytes]:
    """The events of a stream that answers ``body``."""
    number = -(-body["max_tokens"] // tokens_per_event)
    if "messages" in body:
        parts = [{"delta": {"role": "assistant", "content": ""}}, *[{"delta": {"content": "a"}}] * number]
    else:
        parts = [{"text": "a"}] * number
    choices = [[{"index": 0, **part, "finish_reason": None}] for part in parts]
    usage = {"choices": [], "usage": usage_of(body)}
    return [*(data({"choices": choice}) for choice in choices), data(usage), data(b"[DONE]")]


def all_tokens(request: Request) -> Reply:
    """Answer with as many tokens as are asked for."""
    if request.body["stream"]:
        return streamed(token_events(request.body))
    text = {"message": {"content": "a"}} if "messages" in request.body else {"text": "a"}
    return whole({"choices": [text], "usage": usage_of(request.body)})


def in_turn(*answers: Answer) -> Answer:
    """Answer each request with the next of ``answers``; the last one is repeated."""
    remaining = list(answers)
    return lambda request: (remaining.pop(0) if len(remaining) > 1 else remaining[0])(request)


@contextmanager
def fake_server(answer: Answer = all_tokens, models: Sequence[Any] = ({"id": MODEL},)) -> Iterator[FakeServer]:
    """Run a server in a thread while the block runs; GET /v1/models lists ``models``."""
    loop = asyncio.new_event_loop()
    found = FakeServer("", 0)
    num_connections = 0
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        connection = num_connections
        open_writers.add(writer)
        try:
            while True:
                request = await read_request(reader, connection)
                found.requests.append(request)
                reply = whole({"data": list(models)}) if request.method == "GET" else answer(request)
                if not isinstance(reply, Reply):
                    reply = await reply
                for piece in reply.pieces:
                    writer.write(piece)
                    await writer.drain()
                if reply.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            open_writers.discard(writer)
            writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    listening = loop.run_until_complete(start())
    found.port = listening.sockets[0].getsockname()[1]
    found.base_url = f"http://127.0.0.1:{found.port}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def stop() -> None:
        listening.close()
        for writer in list(open_writers):
            writer.transport.abort()
        loop.call_soon(loop.stop)

    try:
        yield found
    finally:
        loop.call_soon_threadsafe(stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def read_request(reader: asyncio.StreamReader, connection: int) -> Request:
    """The next request. Raises IncompleteReadError at the end of the connection."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, json.loads(body or b"{}"), connection)
