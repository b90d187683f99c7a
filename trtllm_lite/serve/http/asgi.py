"""Answers requests that come from another server, by ASGI: https://asgi.readthedocs.io/en/stable/specs/www.html."""

from collections.abc import Callable, Mapping
from urllib.parse import quote

from trtllm_lite.serve.http.asgi_exchange import AsgiExchange, Message, Receive, Send
from trtllm_lite.serve.http.limits import LARGE_BODY, HttpLimits
from trtllm_lite.serve.http.messages import Request, Response, bodies_are_held
from trtllm_lite.serve.http.server import Handler


class AsgiServer:
    """Answers what an ASGI server hands over, as :class:`HttpServer` answers what its own connections bring.

    The arguments are those of HttpServer. Of ``limits`` those of bodies hold; heads, connections and times are the ASGI
    server's to bound.
    """

    def __init__(
        self,
        handler: Handler,
        too_large: Callable[[str, int], Response],
        limits: HttpLimits,
        check_head: Callable[[Mapping[str, str]], Response | None] = lambda _: None,
    ) -> None:
        self._handler = handler
        self._too_large = too_large
        self._limits = limits
        self._check_head = check_head
        self._held_bytes = 0  # of bodies that arrive, or whose requests run

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """As ASGI asks for it; a client that goes away, and a server that cancels the call, end the request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._exchange(scope, receive, send)
        else:
            await send({"type": "websocket.close"})  # before it was accepted: the client gets 403

    async def _exchange(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = bytearray()
        try:
            refusal = await self._receive(body, headers, receive)
            if refusal is None:
                request = Request(
                    method=scope["method"],
                    path=_path(scope),
                    query=scope["query_string"].decode("latin-1"),
                    headers=headers,
                    body=bytes(body),
                    connection=exchange,
                    received=exchange.now(),
                )
                await exchange.answer(self._handler(request), receive)
            else:
                await exchange.send(refusal)
        except OSError:
            return  # the client has gone away
        finally:
            self._held_bytes -= len(body)

    async def _receive(self, body: bytearray, headers: Mapping[str, str], receive: Receive) -> Response | None:
        """Receive the body; returns the response that refuses it, if it goes beyond a limit.

        Raises ConnectionResetError if the client goes away before the body is whole.
        """
        limits, length = self._limits, headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > limits.max_body_bytes):
            return self._too_large(length[:15], limits.max_body_bytes)
        is_head_checked = False
        while (message := await receive())["type"] != "http.disconnect":
            part = message.get("body", b"")
            body += part
            self._held_bytes += len(part)
            if len(body) > limits.max_body_bytes:
                return self._too_large(f"more than {len(body) - 1}", limits.max_body_bytes)
            if self._held_bytes > limits.max_held_bytes:
                return bodies_are_held(limits)
            if len(body) > LARGE_BODY and not is_head_checked:
                is_head_checked = True
                refusal = self._check_head(headers)
                if refusal is not None:
                    return refusal
            if not message.get("more_body", False):
                return None
        raise ConnectionResetError


def _path(scope: Message) -> str:
    """The path as the client wrote it, below where the server has mounted the application."""
    raw = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    mounted_at = quote(scope.get("root_path", ""))
    return path[len(mounted_at) :] or "/" if path.startswith(mounted_at) else path


async def _live(receive: Receive, send: Send) -> None:
    """Acknowledge the server's beginning and end."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})
