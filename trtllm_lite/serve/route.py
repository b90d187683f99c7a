"""Defines routes: the properties of each endpoint, and how requests find their endpoints."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError, ErrorBody, openai_error
from trtllm_lite.serve.http.messages import JSON, Request, Response

if TYPE_CHECKING:
    from trtllm_lite.serve.app import Application

Endpoint = Callable[["Application", Request], Awaitable[Response | None]]


@dataclass(frozen=True)
class Route:
    """An endpoint, and the HTTP method of its requests.

    ``is_open``: no key is needed. ``is_admin``: one of the admin keys is needed, if there are any. ``is_work``: it uses
    an engine, and is refused while the server drains. ``has_one_prompt``: its body is bounded as one prompt is.
    ``error_body``: makes the body of an error. ``body``: the type that the request's body is decoded to, None if it has
    none; ``answer``: the content type of an answer that is no stream. The endpoint's docstring is its summary in the
    server's description (``openapi.py``).
    """

    method: str
    endpoint: Endpoint
    body: type | None = None
    answer: bytes = JSON
    is_open: bool = False
    is_admin: bool = False
    is_work: bool = False
    has_one_prompt: bool = False
    error_body: ErrorBody = openai_error


class RouteTable:
    """Routes by path; a path that ends with / matches all paths that begin with it."""

    def __init__(self, routes: Mapping[str, Sequence[Route]]) -> None:
        self._routes = {path: {route.method: route for route in found} for path, found in routes.items()}
        self._prefixes = [path for path in self._routes if path.endswith("/") and path != "/"]

    def known_path(self, path: str) -> str | None:
        """The path of the table that matches a request's path."""
        if path in self._routes:
            return path
        return next((prefix for prefix in self._prefixes if path.startswith(prefix)), None)

    def methods(self, path: str) -> Mapping[str, Route]:
        """The routes of a path by their methods. Raises ApiError 404."""
        known = self.known_path(path)
        if known is None:
            raise ApiError(404, f"there is nothing at {shown(path)}", code="not_found")
        return self._routes[known]

    def route(self, request: Request) -> Route:
        """The route of a request. Raises ApiError 404 or 405."""
        methods = self.methods(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = [*methods, "HEAD"] if "GET" in methods else list(methods)
            raise ApiError(
                405,
                f"{shown(request.path)} answers {' or '.join(allowed)}, not {shown(request.method)}",
                code="method_not_allowed",
                headers={"Allow": ", ".join(allowed)},
            )
        return route
