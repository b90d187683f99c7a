"""Defines the interface of an application that answers the requests of a server."""

from typing import Protocol

from trtllm_lite.serve.http.messages import Request, Response


class HttpApplication(Protocol):
    """Answers requests."""

    def check_head(self, request: Request) -> Response | None:
        """Check a request when its head is complete, before any of its body is kept; may return the response."""

    async def handle(self, request: Request) -> Response | None:
        """Answer a request, with a response or with events (``Connection.open_stream``); raises only CancelledError."""

    def too_large(self, size: str, most: int, request: Request) -> Response:
        """The answer to a body of ``size`` bytes, which is more than ``most``."""
