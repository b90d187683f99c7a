"""Reads types of arguments from the JSON schema of a function."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 8  # nesting of references and alternatives
_DEFINITIONS = ("$defs", "definitions")
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_KINDS |= {list: "array", dict: "object"}


@dataclass(frozen=True)
class Property:
    """An argument: its schema, with the definitions that it refers to, and the types that its values may have."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool
    kinds: frozenset[str]

    @property
    def is_text(self) -> bool:
        """Whether every text is a value, as for an argument without a known type."""
        return self.kinds <= {"string"}


def properties_of(parameters: Mapping[str, Any]) -> list[Property] | None:
    """The arguments of a function, in their order; None if any are allowed."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return [] if parameters.get("additionalProperties") is False else None
    required = parameters.get("required")
    definitions = {key: parameters[key] for key in _DEFINITIONS if key in parameters}
    found = []
    for name, schema in properties.items():
        schema = schema if isinstance(schema, Mapping) else {}
        is_required = isinstance(required, list) and name in required
        kinds = frozenset(_kinds(schema, parameters, set()))
        found.append(Property(name, {**schema, **definitions}, is_required, kinds))
    return found


def _kinds(schema: Any, root: Mapping[str, Any], seen: set[int], depth: int = 0) -> Iterator[str]:
    """The types that values of a schema may have, as far as they are known. Schemas in ``seen`` add nothing."""
    if not isinstance(schema, Mapping) or id(schema) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(schema))
    named = schema.get("type")
    for kind in named if isinstance(named, list) else [named]:
        if isinstance(kind, str):
            yield kind
    values = schema.get("enum")
    for value in [*(values if isinstance(values, list) else []), *([schema["const"]] if "const" in schema else [])]:
        if named is None and type(value) in _KINDS:
            yield _KINDS[type(value)]
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        for alternative in alternatives if isinstance(alternatives, list) else []:
            yield from _kinds(alternative, root, seen, depth + 1)
    yield from _kinds(_referred(schema.get("$ref"), root), root, seen, depth + 1)


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str):
        return None
    start, _, name = reference.removeprefix("#/").partition("/")
    definitions = root.get(start) if start in _DEFINITIONS else None
    return definitions.get(name) if isinstance(definitions, Mapping) else None
