"""Frozen dataclasses <-> JSON, strictly: a missing or unknown key or a wrong type is an EngineError that says where."""

import dataclasses
import json
import types
import typing
from functools import cache
from typing import Any, TypeVar

from trtllm_lite.errors import EngineError

Record = TypeVar("Record")

_PLAIN_TYPES = (str, int, float, bool, type(None))


def json_key(field: dataclasses.Field) -> str:
    """The JSON key of a field: its name, unless ``metadata={"key": ...}`` says otherwise (a Python keyword)."""
    return field.metadata.get("key", field.name)


def to_json(value: Any) -> Any:
    """``value`` as plain JSON types; records become objects whose keys are in field order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {json_key(field): to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON that may be hostile: broken syntax, duplicate keys, NaN or endless nesting is an EngineError."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{where}: expected JSON, found {error}. The file is damaged: make it again") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate keys in an object")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"the number {name}")


def from_json(record: type[Record], data: Any, where: str) -> Record:
    """Build ``record`` from parsed JSON; ``where`` starts the path that an EngineError names."""
    return typing.cast(Record, _decode(record, data, where))


def _decode(expected: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(expected)
    if expected is Any:
        return data
    if dataclasses.is_dataclass(expected):
        return _decode_record(expected, data, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(expected), data, where)
    if origin in (list, tuple):
        return origin(_decode_items(typing.get_args(expected), data, where))
    if origin is dict:
        _require(isinstance(data, dict), "an object", data, where)
        value_type = typing.get_args(expected)[1]
        return {key: _decode(value_type, entry, f"{where}.{key}") for key, entry in data.items()}
    # bool is an int and JSON writes 1.0 as 1: neither may blur what a field holds.
    fits = type(data) is expected or (expected is float and type(data) is int)
    _require(fits, getattr(expected, "__name__", str(expected)), data, where)
    return float(data) if expected is float else data


def _decode_items(items: tuple[Any, ...], data: Any, where: str) -> list[Any]:
    """``items`` is (type,) or (type, ...) for any number of them, else one type for each."""
    _require(isinstance(data, list), "a list", data, where)
    if len(items) == 1 or items[-1] is Ellipsis:
        items = items[:1] * len(data)
    _require(len(data) == len(items), f"{len(items)} items", data, where)
    pairs = zip(items, data, strict=True)
    return [_decode(item, entry, f"{where}[{index}]") for index, (item, entry) in enumerate(pairs)]


@cache
def _fields(record: Any) -> dict[str, tuple[str, Any]]:
    """JSON key -> (name, type) of each field."""
    hints = typing.get_type_hints(record)
    return {json_key(field): (field.name, hints[field.name]) for field in dataclasses.fields(record)}


def _decode_record(record: Any, data: Any, where: str) -> Any:
    _require(isinstance(data, dict), "an object", data, where)
    fields = _fields(record)
    missing, unknown = sorted(fields.keys() - data.keys()), sorted(data.keys() - fields.keys())
    if missing or unknown:
        raise EngineError(
            f"{where}: expected the keys {', '.join(fields)}; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(unknown) or 'none'}. The file is damaged or of another version: make it again"
        )
    values = {name: _decode(hint, data[key], f"{where}.{key}") for key, (name, hint) in fields.items()}
    return record(**values)


def _decode_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    """Records of a union are told apart by their keys."""
    records: list[Any] = [option for option in options if dataclasses.is_dataclass(option)]
    if isinstance(data, dict) and records:
        alike: list[Any] = [record for record in records if _fields(record).keys() == data.keys()]
        return _decode_record((alike or records)[0], data, where)
    names = " or ".join(option.__name__ for option in options)
    _require(type(data) in options, names, data, where)
    return data


def _require(condition: bool, expected: str, found: Any, where: str) -> None:
    if not condition:
        shown = repr(found) if isinstance(found, _PLAIN_TYPES) else type(found).__name__
        raise EngineError(f"{where}: expected {expected}, found {shown[:80]}. The file is damaged: make it again")
