"""Describes the server by OpenAPI 3.1: https://spec.openapis.org/oas/v3.1.1.html.

Paths come from the routes, the fields of requests from the types that their bodies are decoded to, and summaries from
the docstrings of endpoints, so that a new route needs no change here.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from trtllm_lite import __version__
from trtllm_lite.serve.api_error import ErrorBody, openai_error
from trtllm_lite.serve.bodies.fields import rows_of, server_tools
from trtllm_lite.serve.bodies.leniency import structs_of
from trtllm_lite.serve.endpoints.messages import anthropic_error
from trtllm_lite.serve.http.messages import EVENTS, JSON
from trtllm_lite.serve.route import Route

_COMPONENTS = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "description": "An error in the form of OpenAI's API.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "What is wrong, for people."},
                "type": {"type": "string", "description": "The kind of error, which follows from the status."},
                "param": {"type": ["string", "null"], "description": "The field of the request that is at fault."},
                "code": {"type": ["string", "null"], "description": "A word that programs can tell errors apart by."},
            },
        }
    },
}

_ANTHROPIC_ERROR = {
    "type": "object",
    "description": "An error in the form of Anthropic's API.",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_ERRORS: dict[ErrorBody, str] = {openai_error: "Error", anthropic_error: "AnthropicError"}


def describe(routes: Mapping[str, Sequence[Route]], *, has_keys: bool) -> dict[str, Any]:
    """The description of a server with these routes; ``has_keys`` tells whether it asks for a key."""
    bodies = {route.body: None for found in routes.values() for route in found if route.body is not None}
    references, components = msgspec.json.schema_components(tuple(bodies), ref_template=_COMPONENTS)
    _add_dropped(components, bodies)
    body_schemas = dict(zip(bodies, references, strict=True))
    paths: dict[str, Any] = {}
    for path, found in routes.items():
        is_prefix = path.endswith("/") and path != "/"
        operations = {route.method.lower(): _operation(route, path, body_schemas, has_keys=has_keys) for route in found}
        paths[f"{path}{{name}}" if is_prefix else path] = {
            **({"parameters": [_NAME]} if is_prefix else {}),
            **operations,
        }
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "trtllm_lite", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**components, "Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}},
    }
    if has_keys:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return description


def _add_dropped(components: dict[str, Any], bodies: Iterable[type]) -> None:
    """Add what is accepted and dropped: fields of the table, and tools that run on servers."""
    for struct in set[Any]().union(*map(structs_of, bodies)):
        schema = components[struct.__name__]
        for name, row in rows_of(struct).items():
            schema["properties"].setdefault(name, row.schema())
        pattern = server_tools(struct)
        if pattern is not None:
            kind = {"type": "string", "pattern": f"^({pattern})$"}
            left_out = {"type": "object", "required": ["type"], "properties": {"type": kind}}
            components[struct.__name__] = {"anyOf": [schema, {**left_out, "description": "Dropped from lists."}]}


_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(
    route: Route, path: str, body_schemas: Mapping[Any, dict[str, Any]], *, has_keys: bool
) -> dict[str, Any]:
    summary, _, details = inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n\n")
    operation: dict[str, Any] = {"operationId": _operation_id(route, path), "summary": " ".join(summary.split())}
    if details:
        operation["description"] = details
    if has_keys:
        operation["security"] = [] if route.is_open else [{"key": []}]
    if route.body is not None:
        content = {"application/json": {"schema": body_schemas[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    answers = {_media_type(kind): _content(kind) for kind in (route.answer, *([EVENTS] if _may_stream(route) else []))}
    error = {"schema": {"$ref": _COMPONENTS.format(name=_ERRORS[route.error_body])}}
    errors = {"description": "The request gets no answer.", "content": {"application/json": error}}
    operation["responses"] = {"200": {"description": "The answer.", "content": answers}, "4XX": errors, "5XX": errors}
    return operation


def _operation_id(route: Route, path: str) -> str:
    return f"{route.method.lower()}_{path.strip('/').replace('/', '_').replace('.', '_') or 'page'}" + (
        "_name" if path.endswith("/") and path != "/" else ""
    )


def _may_stream(route: Route) -> bool:
    return route.body is not None and any(field.name == "stream" for field in msgspec.structs.fields(route.body))


def _media_type(content_type: bytes) -> str:
    return content_type.partition(b";")[0].decode()


def _content(content_type: bytes) -> dict[str, Any]:
    return {"schema": {"type": "object"}} if content_type == JSON else {}
