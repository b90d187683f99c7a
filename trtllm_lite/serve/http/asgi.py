"""Answers requests that come from another server, by ASGI: https://asgi.readthedocs.io/en/stable/specs/www.html."""

from urllib.parse import quote

from trtllm_lite.serve.http.asgi_exchange import AsgiExchange, Message, Receive, Send
from trtllm_lite.serve.http.decoded_size import decoded_bytes
from trtllm_lite.serve.http.http_application import HttpApplication
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.messages import Request, Response, announced_bytes, bodies_are_held, decodes_to_much


class AsgiServer:
    """Answers requests of an ASGI server, as HttpServer answers those of its own connections.

    Only ``limits`` of bodies apply; the ASGI server has to bound heads, connections and times.
    """

    def __init__(self, app: HttpApplication, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits
        self._held_bytes = 0  # bytes of bodies that arrive, or whose requests run

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer an ASGI call; a client that goes away, and a server that cancels the call, end the request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._exchange(scope, receive, send)
        else:
            await send({"type": "websocket.close"})  # closed before it was accepted, so the client gets 403

    async def _exchange(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request = Request(
            method=scope["method"],
            path=_path(scope),
            query=scope["query_string"].decode("latin-1"),
            headers=headers,
            body=bytearray(),
            connection=exchange,
            received=exchange.now(),
            host=headers.get("host", ""),
        )
        try:
            refusal = self._app.check_head(request) or await self._receive(request, receive)
            if refusal is None:
                request.received = exchange.now()
                await exchange.answer(self._app.handle(request), receive)
            else:
                await exchange.send(refusal)
        except OSError:
            return  # the client has gone away
        finally:
            self._held_bytes -= request.held_bytes

    async def _receive(self, request: Request, receive: Receive) -> Response | None:
        """Receive the body; returns the response that refuses it if it exceeds a limit.

        Raises ConnectionResetError if the client goes away before the body is whole.
        """
        limits, body, announced = self._limits, request.body, announced_bytes(request.headers)
        own = request.max_body_bytes
        most = limits.max_body_bytes if own is None else min(own, limits.max_body_bytes)
        if int(announced) > most:
            return self._app.too_large(announced, most, request)
        while (message := await receive())["type"] != "http.disconnect":
            part = message.get("body", b"")
            body += part
            size = decoded_bytes(part)
            self._held_bytes += size
            request.held_bytes += size
            if len(body) > most:
                return self._app.too_large(f"more than {len(body) - 1}", most, request)
            if request.held_bytes > limits.max_decoded_bytes:
                return decodes_to_much(limits)
            if self._held_bytes > limits.max_held_bytes:
                return bodies_are_held(limits)
            if not message.get("more_body", False):
                return None
        raise ConnectionResetError


def _path(scope: Message) -> str:
    """The path as the client wrote it, relative to where the server has mounted the application."""
    raw = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    mounted_at = quote(scope.get("root_path", ""))
    return path[len(mounted_at) :] or "/" if path.startswith(mounted_at) else path


async def _live(receive: Receive, send: Send) -> None:
    """Acknowledge the start and the shutdown of the server."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})
