"""Makes the page that shows the server's OpenAPI description, without a script and without a network."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from trtllm_lite.pages import colors
from trtllm_lite.serve.page import page_headers

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid; padding: .2rem .6rem .2rem 0;
text-align: left; vertical-align: top } h2 { margin-top: 2.5rem }
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
    return (page + "".join(_operations(description)) + "</html>").encode(), page_headers(style)


def _operations(description: Mapping[str, Any]) -> Iterator[str]:
    schemas = description["components"]["schemas"]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            yield f"<h2><code>{escape(f'{method.upper()} {path}')}</code></h2><p>{escape(operation['summary'])}</p>"
            if "description" in operation:
                yield f"<p>{escape(operation['description'])}</p>"
            if "requestBody" in operation:
                yield _fields(operation["requestBody"]["content"]["application/json"]["schema"], schemas)


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    found = _resolved(schema, schemas)
    required = found.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in required else ''}"
        f"<td>{escape(_kind(entry))}<td>{escape(entry.get('description', ''))}"
        for name, entry in found.get("properties", {}).items()
    )
    return f"<table><tr><th>field<th>type<th>description{rows}</table>"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that a reference names, or the first of several alternatives."""
    while "$ref" in schema or "anyOf" in schema:
        schema = schemas[_name(schema["$ref"])] if "$ref" in schema else schema["anyOf"][0]
    return schema


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a field, in a few words."""
    if "$ref" in schema:
        return _name(schema["$ref"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_kind(schema['items'])}"
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(kind)


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
