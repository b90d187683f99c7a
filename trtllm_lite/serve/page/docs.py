"""Makes the page that shows the server's OpenAPI description, without a script and without a network."""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from trtllm_lite.pages import colors
from trtllm_lite.serve.page import page_headers

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
nav li { margin: .2rem 0 } h2 { margin-top: 2.5rem } summary { cursor: pointer }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid; padding: .2rem .6rem .2rem 0;
text-align: left; vertical-align: top }
@media (max-width: 40rem) { thead { display: none } tr { border-bottom: 1px solid; display: block; padding: .4rem 0 }
td { border: 0; display: block; overflow-wrap: anywhere; padding: 0 }
td:nth-child(3):not(:empty)::before { content: "default: " } }
"""


def render_docs(description: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The page of an OpenAPI description, and its headers."""
    style = colors() + _STYLE
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>API of {title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{style}</style><h1>API of {title}</h1>"
        '<p>For programs: <a href="openapi.json">openapi.json</a>. To try prompts: <a href="./">the chat page</a>.</p>'
    )
    sections = (*_index(description), *_sections(description), *_objects(description))
    return (page + "".join(sections) + "</html>").encode(), page_headers(style)


def _operations(description: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Identifiers, methods with paths, and operations."""
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                yield operation["operationId"], f"{method.upper()} {path}", operation


def _index(description: Mapping[str, Any]) -> Iterator[str]:
    yield "<nav><ul>"
    for name, call, operation in _operations(description):
        yield f'<li><a href="#{name}"><code>{escape(call)}</code></a> {_text(operation["summary"])}'
    yield "</ul></nav>"


def _sections(description: Mapping[str, Any]) -> Iterator[str]:
    for name, call, operation in _operations(description):
        yield f'<h2 id="{name}"><code>{escape(call)}</code></h2><p>{_text(operation["summary"])}</p>'
        if "description" in operation:
            yield f"<p>{_text(operation['description'])}</p>"
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = _resolved(schema, description["components"]["schemas"])
            count = len(body.get("properties", ()))
            yield f"<details open><summary>The body: {count} fields</summary>{_fields(body)}</details>"


def _objects(description: Mapping[str, Any]) -> Iterator[str]:
    """The sections of the objects that fields link to."""
    schemas = description["components"]["schemas"]
    linked = "".join(_fields(schema) for schema in schemas.values())
    for name, schema in schemas.items():
        if f'href="#{escape(name)}"' not in linked:
            continue
        yield f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2>'
        if "description" in schema:
            yield f"<p>{_text(schema['description'])}</p>"
        yield _fields(schema)


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in required else ''}"
        f"<td>{_kind(entry)}{_range(entry)}<td>{_default(entry)}<td>{_text(entry.get('description', ''))}"
        for name, entry in schema.get("properties", {}).items()
    )
    return f"<table><thead><tr><th>field<th>type<th>default<th>description<tbody>{rows}</table>"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that a reference names, or the first of several alternatives."""
    while "$ref" in schema or "anyOf" in schema:
        schema = schemas[_name(schema["$ref"])] if "$ref" in schema else schema["anyOf"][0]
    return schema


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a field, in a few words; objects of the description are links."""
    if "$ref" in schema:
        name = escape(_name(schema["$ref"]))
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return escape(", ".join(map(repr, schema["enum"])))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_kind(schema['items'])}"
    kind = schema.get("type", "any")
    return escape(kind if isinstance(kind, str) else " or ".join(kind))


def _range(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    words = [f"from {least}"] if least is not None else []
    words += [f"to {most}"] if most is not None else []
    return "".join((", " if words else "", " ".join(words)))


def _default(schema: Mapping[str, Any]) -> str:
    return f"<code>{escape(json.dumps(schema['default']))}</code>" if schema.get("default") is not None else ""


def _text(words: str) -> str:
    """A text whose parts in backticks are code."""
    return re.sub("`+([^`]+)`+", r"<code>\1</code>", escape(words))


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
