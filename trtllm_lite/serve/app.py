"""Defines Application: finds the endpoint of each request, and turns errors into responses."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from trtllm_lite.common.vocabulary import MODULE_USES, TEXT_CLASSIFIER, TEXT_ENCODER
from trtllm_lite.errors import shown
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.api_error import ApiError, ErrorBody, api_error, openai_error
from trtllm_lite.serve.api_keys import ApiKeys
from trtllm_lite.serve.bodies import Body, decode
from trtllm_lite.serve.bodies.leniency import Ignored
from trtllm_lite.serve.http.messages import Request, Response, is_header_value
from trtllm_lite.serve.metrics.server_metrics import ServerMetrics
from trtllm_lite.serve.model_names import ModelNames
from trtllm_lite.serve.origins import Origins
from trtllm_lite.serve.route import Route, RouteTable
from trtllm_lite.serve.served_encoder import ServedEncoder
from trtllm_lite.serve.served_engine import ServedEngine
from trtllm_lite.serve.served_model import ServedModel
from trtllm_lite.serve.turns import TURN, Lanes, Turn, network_of

if TYPE_CHECKING:
    from trtllm_lite.serve.tracing import Traces

_NOT_OF_KIND = {TEXT_ENCODER: "not_an_embedder", TEXT_CLASSIFIER: "not_a_classifier"}  # codes of errors
_LONGEST_ID = 128
_CLOSED_REQUEST = 499  # nginx's status for a client that went away
_NO_BODY = 1 << 10  # the most bytes of a body for an endpoint that ignores bodies
_BYTES_PER_CHAR = 3  # bytes of a body per character of the longest prompt: UTF-8, escapes, dropped thoughts
_BESIDE_PROMPT = 64 << 10  # bytes of a body besides its prompt


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The operator's settings.

    - ``api_keys``: the keys of which requests must show one; None if they need none
    - ``admin_keys``: the keys for loading adapters, which are valid for all other requests, too; None if loading
      adapters needs no separate key
    - ``origins``: the hosts and the origins whose requests are accepted
    - ``lora_root``: the directory below which adapters may be loaded by requests; None for nowhere
    - ``ignore_unknown_fields``: whether fields of bodies that are not known are dropped instead of refused
    - ``access_log``, ``traces``: where these go; None for nowhere
    """

    api_keys: ApiKeys | None = None
    admin_keys: ApiKeys | None = None
    origins: Origins = field(default_factory=Origins)
    lora_root: Path | None = None
    ignore_unknown_fields: bool = False
    access_log: AccessLog
    traces: "Traces | None" = None


class Application:
    """Answers requests, which are prepared in ``lanes``.

    ``routes`` are by path; one that ends with / is for all paths that begin with it.
    """

    def __init__(
        self,
        models: Sequence[ServedEngine],
        routes: Mapping[str, Sequence[Route]],
        settings: Settings,
        lanes: Lanes,
    ) -> None:
        self.models = list(models)
        self._lanes = lanes
        self.settings = settings
        self.metrics = ServerMetrics(self.models)
        self.metrics_text: Callable[[], Awaitable[bytes]] = partial(asyncio.to_thread, self.metrics.text)
        """Makes the text of /metrics; runs in another thread, so that streams go on."""
        self.routes = routes
        self.is_draining = False
        self.names = ModelNames(models, Random())
        self._table = RouteTable(routes)
        self._max_prompt_bytes = _BESIDE_PROMPT + _BYTES_PER_CHAR * max(
            (model.max_prompt_chars for model in models), default=0
        )
        self.running: set[asyncio.Task[object]] = set()
        """The tasks that answer requests which need an engine."""

    def check_head(self, request: Request) -> Response | None:
        """Check a request before its body arrives; returns the response if it can be answered already, or None.

        The check sets the request's names, and the limit of its body.
        """
        given = request.headers.get("x-request-id", "")
        request.id = given if is_header_value(given, _LONGEST_ID) else secrets.token_hex(16)
        error_body: ErrorBody = openai_error
        try:
            self.settings.origins.check(request)
            methods = self._table.methods(request.path)
            response = self.settings.origins.preflight(request, methods)
            if response is None:
                route = self._table.route(request)
                error_body = route.error_body
                request.client = self._client(route, request)
                request.max_body_bytes = self._max_body_bytes(route)
                return None
        except ApiError as error:
            response = error.response(error_body)
        return self._answered(request, response.status, response)

    async def handle(self, request: Request) -> Response | None:
        """Answer a request that passed :meth:`check_head`; None if it was answered by events.

        Raises only CancelledError.
        """
        status, response = _CLOSED_REQUEST, None
        route = self._table.route(request)
        TURN.set(Turn(self._lanes, request.client, len(request.body)))
        try:
            response = await self._respond(route, request)
            status = 200 if response is None else response.status
        except Exception as error:  # noqa: BLE001 - the client gets an answer for any error
            response = _failed(error, route.error_body)
            status = response.status
        finally:
            self._answered(request, status, response)
        return response

    def _answered(self, request: Request, status: int, response: Response | None) -> Response | None:
        """Note that a request is answered; returns its response, with the headers that every response gets."""
        seconds = request.connection.seconds_since(request.received)
        self.metrics.count_request(request.method, self._table.known_path(request.path), status, seconds)
        self.settings.access_log.write(request, status)
        if response is not None:
            response.headers |= request.answer_headers
        return response

    def decoder(self, request: Request, kind: type[Body]) -> Callable[[bytearray], Body]:
        """The decoder of the request's body; the answer's headers will list the fields that it ignores."""
        ignored = Ignored(self.settings.ignore_unknown_fields, request.ignored)
        return partial(decode, kind=kind, ignored=ignored, max_prompt_bytes=self._max_prompt_bytes)

    def cut_off(self) -> None:
        """End with an error all answers that are being generated."""
        for model in self.models:
            for interrupt in list(model.waiting):
                interrupt(ApiError(503, "the server was shut down before the answer was whole", code="draining"))

    def too_large(self, size: str, most: int, request: Request) -> Response:
        """The response to a body of more bytes than the server accepts of this request."""
        limit, route = "of max_body_size", self._table.route(request)
        if most == request.max_body_bytes:
            limit = "that a prompt of max_input_len tokens can have" if route.has_one_prompt else "that are read here"
        message = f"the body has {size} bytes, which exceeds the {most} {limit}: send less"
        return ApiError(413, message, code="body_too_large").response(route.error_body)

    def check_engines(self) -> None:
        """Raise ApiError 503 if an engine is broken."""
        broken = next((model for model in self.models if model.is_broken), None)
        if broken is not None:
            raise ApiError(
                503, f"the engine of {shown(broken.name)} has failed: restart the server", code="engine_dead"
            )

    def served(
        self, request: Request, name: str, request_id: str | None = None
    ) -> tuple[ServedModel, LoRARequest | None]:
        """The decoder called ``name`` and None, or the model of the adapter called ``name`` and that adapter.

        The arguments are those of :meth:`found`, with its ApiErrors; ApiError is also raised for an encoder.
        """
        model, adapter = self.found(request, name, request_id)
        if not isinstance(model, ServedModel):
            raise ApiError(
                400,
                f"{shown(model.name)} is an encoder, which generates no text: send texts to {model.module.use.route}",
                param="model",
                code="not_a_generator",
            )
        return model, adapter

    def encoder(self, request: Request, name: str, kind: str) -> ServedEncoder:
        """The encoder called ``name``, or the one beside the decoder called that, whose module is of this ``kind``.

        Raises ApiError if there is none.
        """
        model, _ = self.found(request, name)
        model = next((other for other in self.models if other.settings.part_of == model.name), model)
        if not isinstance(model, ServedEncoder) or model.module.kind != kind:
            use = model.module.use
            raise ApiError(
                400,
                f"{shown(model.name)} {use.doing}, by {use.route}, and {MODULE_USES[kind].route} is not for it: name a "
                f"{kind.replace('_', ' ')}",
                param="model",
                code=_NOT_OF_KIND[kind],
            )
        return model

    def found(
        self, request: Request, name: str, request_id: str | None = None
    ) -> tuple[ServedEngine, LoRARequest | None]:
        """The engine and adapter (or None) that ``name`` stands for; see :meth:`ModelNames.find`.

        A request that names no model gets the only one. ``request_id`` is the name of the request in its body, which
        replaces that of its header. Raises ApiError 404, or 400 for a name that cannot be in a header.
        """
        if request_id is not None:
            if not is_header_value(request_id, _LONGEST_ID):
                raise ApiError(
                    400,
                    f"request_id: expected 1 to {_LONGEST_ID} visible ASCII characters",
                    param="request_id",
                    code="invalid_value",
                )
            request.id = request_id
        name = name or self.names.default()
        model, adapter = self.names.find(name)
        request.model = name
        if name in self.names.shared:
            request.version = model.name
        return model, adapter

    def _max_body_bytes(self, route: Route) -> int | None:
        """The limit of bodies for a route, if it is lower than the server's."""
        if route.body is None:
            return _NO_BODY
        if route.has_one_prompt:
            return self._max_prompt_bytes
        return None if hasattr(route.body, "PROMPTS") else _BESIDE_PROMPT

    async def _respond(self, route: Route, request: Request) -> Response | None:
        if request.method == "POST":
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and request.body:
                raise ApiError(
                    415, f"content-type is {shown(kind)}: expected application/json", code="unsupported_media_type"
                )
        if not route.is_work:
            return await route.endpoint(self, request)
        if self.is_draining:
            raise ApiError(
                503, "the server is shutting down: send the request to another", code="draining", retry_after=1
            )
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        traces = self.settings.traces
        try:
            with nullcontext() if traces is None else traces.span(request):
                return await route.endpoint(self, request)
        finally:
            self.running.discard(task)

    def _client(self, route: Route, request: Request) -> str:
        """The client that a request counts for: the holder of a key, or else an address. Raises ApiError 401 or 403."""
        settings = self.settings
        admin = None if settings.admin_keys is None else settings.admin_keys.shown_in(request.headers)
        user = None if settings.api_keys is None else settings.api_keys.shown_in(request.headers)
        needs_admin = route.is_admin and settings.admin_keys is not None
        needs_key = needs_admin or (settings.api_keys is not None and not route.is_open)
        if needs_key and admin is None and user is None:
            raise ApiError(
                401, "the request shows no valid key: send Authorization: Bearer KEY", code="invalid_api_key"
            )
        if needs_admin and admin is None:
            raise ApiError(403, "this request needs a key of --admin_key_file: send such a key", code="not_an_admin")
        return admin or user or network_of(request.connection.client)


def error_about(error: Exception, names: Mapping[str, str]) -> ApiError:
    """The error that a client gets for ``error``; ``names`` maps the runtime's names of fields to the request's.

    Callers must not keep the error, as it would keep the request alive.
    """
    failure = api_error(error, FIELDS)
    failure.param = names.get(failure.param or "", failure.param)
    return failure


def _failed(error: Exception, body: ErrorBody) -> Response:
    """The response to a request that an error ended. No caller keeps the error, which would keep the request alive."""
    return api_error(error, FIELDS).response(body)


FIELDS = frozenset(
    (
        *(name for name, field in fields_of(SamplingParams).items() if field.http is None or field.http.name is None),
        *("prompt", "priority", "timeout", "cache_salt", "messages", "tools", "tool_choice"),
        *("chat_template_kwargs", "chat_template"),
    )
)
"""Names of fields that the runtime's messages may begin with."""
