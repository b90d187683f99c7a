"""Answers with information about the server, for programs and for people."""

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from trtllm_lite import __version__
from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.events import encode_json
from trtllm_lite.serve.http.messages import HTML, TEXT, Request, Response
from trtllm_lite.serve.openapi import describe
from trtllm_lite.serve.page import render_page
from trtllm_lite.serve.page.docs import render_docs
from trtllm_lite.serve.served_engine import ServedEngine

_MODEL_PATH = "/v1/models/"
_PAGE = render_page()
_DESCRIPTIONS: WeakKeyDictionary[Application, dict[str, Any]] = WeakKeyDictionary()  # lets engines end with servers
_COMMON = {"object": "model", "created": int(time.time()), "owned_by": "trtllm_lite"}


async def models(app: Application, request: Request) -> Response:
    """All models and their adapters, or the one that the path names."""
    entries = [_shared(name, list(versions)) for name, versions in app.names.shared.items()]
    entries += [entry for model in app.models for entry in _entries(model)]
    if not request.path.startswith(_MODEL_PATH):
        return Response(200, encode_json({"object": "list", "data": entries}))
    name = unquote(request.path[len(_MODEL_PATH) :])
    found = next((entry for entry in entries if entry["id"] == name), None)
    if found is None:
        raise ApiError(404, f"there is no model {shown(name)}", param="model", code="model_not_found")
    return Response(200, encode_json(found))


def _entries(model: ServedEngine) -> list[dict[str, Any]]:
    lengths = {"max_model_len": model.max_model_len, "max_input_len": model.max_input_len}
    of = {"root": model.name, "parent": model.settings.part_of}
    own = [{"id": name, **_COMMON, **of, **lengths} for name in model.settings.names]
    adapters = [
        {"id": name, **_COMMON, "root": adapter.lora_path, "parent": model.name}
        for name, adapter in model.adapters.items()
    ]
    return own + adapters


def _shared(name: str, versions: Sequence[ServedEngine]) -> dict[str, Any]:
    """The entry of a name that models share, with the lengths that all of these models accept."""
    lengths = {key: min(getattr(model, key) for model in versions) for key in ("max_model_len", "max_input_len")}
    return {"id": name, **_COMMON, "root": name, "parent": None, **lengths}


async def health(app: Application, request: Request) -> Response:  # noqa: ARG001
    """200 while every engine works; 503 once one is broken."""
    app.check_engines()
    return Response(200, b"", TEXT)


async def live(app: Application, request: Request) -> Response:  # noqa: ARG001
    """200 while the process answers at all, whatever its engines do."""
    return Response(200, b"", TEXT)


async def ready(app: Application, request: Request) -> Response:
    """200 while every engine works; 503 once one is broken, and while the server shuts down."""
    if app.is_draining:
        raise ApiError(503, "the server is shutting down", code="draining")
    return await health(app, request)


async def version(app: Application, request: Request) -> Response:  # noqa: ARG001
    """The version of this package."""
    return Response(200, encode_json({"version": __version__}))


async def load(app: Application, request: Request) -> Response:  # noqa: ARG001
    """The load of each engine; ``server_load``, vLLM's name, is their sum."""
    models = {model.name: model.load() for model in app.models}
    return Response(200, encode_json({"server_load": sum(model.num_active for model in app.models), "models": models}))


async def page(app: Application, request: Request) -> Response:  # noqa: ARG001
    """The page on which people try prompts."""
    content, headers = _PAGE
    return Response(200, content, HTML, dict(headers))


async def openapi(app: Application, request: Request) -> Response:  # noqa: ARG001
    """This description of the server, by OpenAPI 3.1."""
    return Response(200, encode_json(_description(app)))


async def docs(app: Application, request: Request) -> Response:  # noqa: ARG001
    """The page that shows the server's OpenAPI description to people."""
    content, headers = render_docs(_description(app))
    return Response(200, content, HTML, dict(headers))


def _description(app: Application) -> dict[str, Any]:
    if app not in _DESCRIPTIONS:
        _DESCRIPTIONS[app] = describe(app.routes, has_keys=app.settings.api_keys is not None)
    return _DESCRIPTIONS[app]
