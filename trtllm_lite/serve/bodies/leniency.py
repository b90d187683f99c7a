"""Removes from a request's plain JSON the values that the table of ``fields`` drops, by the types of its body."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from trtllm_lite.serve.bodies.fields import is_server_tool, rows_of


@dataclass
class Ignored:
    """Parts of a request that are left out although they ask for something: unknown fields, if ``takes_unknown``, and
    tools that run on servers. ``places`` names them."""

    takes_unknown: bool = False
    places: list[str] = field(default_factory=list)


def without_ignored(value: Any, kind: type, ignored: Ignored) -> Any:
    """``value``, which is to become a ``kind``, without fields that are null, or that the table drops.

    JSON has one kind of number: where a whole one is expected, 50.0 is 50. Raises ApiError for what the table refuses.
    """
    return _cleaned(value, _type_of(kind), "", ignored)


@cache
def _type_of(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _cleaned(value: Any, kind: inspect.Type, place: str, ignored: Ignored) -> Any:
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    for option in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        match option, value:
            case inspect.StructType(), dict():
                return _fields(value, option, place, ignored)
            case inspect.ListType(item_type=item_type), list() if not isinstance(item_type, inspect.AnyType):
                return _entries(value, item_type, place, ignored)
            case inspect.IntType(), float() if value.is_integer():
                return int(value)
    return value


def _fields(value: dict[str, Any], kind: inspect.StructType, place: str, ignored: Ignored) -> dict[str, Any]:
    types, rows = {found.encode_name: found.type for found in kind.fields}, rows_of(kind.cls)
    kept = {}
    for name, item in value.items():
        where = f"{place}.{name}" if place else name
        if item is None:
            continue
        if name in types:
            kept[name] = _cleaned(item, types[name], where, ignored)
        elif (row := rows.get(name)) is not None:
            if not row.is_dropped(item):
                raise row.refusal(where, item)
            if row.is_noted:
                ignored.places.append(where)
        elif ignored.takes_unknown and kind.forbid_unknown_fields:
            ignored.places.append(where)
        else:
            kept[name] = item
    return kept


def _entries(value: list[Any], kind: inspect.Type, place: str, ignored: Ignored) -> list[Any]:
    kept = []
    for number, entry in enumerate(value):
        where = f"{place}[{number}]"
        if isinstance(kind, inspect.StructType) and is_server_tool(kind.cls, entry):
            ignored.places.append(where)
        else:
            kept.append(_cleaned(entry, kind, where, ignored))
    return kept


def structs_of(kind: type) -> set[type[msgspec.Struct]]:
    """The structs that a body is made of."""
    found: set[type[msgspec.Struct]] = set()
    pending = [_type_of(kind)]
    while pending:
        one = pending.pop()
        if isinstance(one, inspect.Metadata):
            pending.append(one.type)
        elif isinstance(one, inspect.UnionType):
            pending += one.types
        elif isinstance(one, inspect.ListType):
            pending.append(one.item_type)
        elif isinstance(one, inspect.StructType) and one.cls not in found:
            found.add(one.cls)
            pending += [each.type for each in one.fields]
    return found
