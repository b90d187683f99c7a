"""Converts frozen dataclasses to JSON and back, strictly: a value that a field's annotation forbids is an EngineError.

Annotations may restrict types further, as in ``Annotated[int, Range(0, 7)]``. The C++ reader is generated from the same
annotations (``csrc/generate_records.py``). This module imports only the standard library.
"""

import dataclasses
import json
import re
import types
import typing
from functools import cache
from typing import Any, TypeVar

from trtllm_lite.errors import EngineError

Record = TypeVar("Record")

_PLAIN_TYPES = (str, int, float, bool, type(None))


@dataclasses.dataclass(frozen=True)
class Range:
    """An integer from ``low`` to ``high``, both inclusive."""

    low: int
    high: int

    def expected(self, value: int) -> str | None:
        """A description of the values expected instead of ``value``; None if ``value`` is one of them."""
        return None if self.low <= value <= self.high else f"an integer from {self.low} to {self.high}"


@dataclasses.dataclass(frozen=True)
class IndexOf:
    """A position in the root record's list ``name``, which is declared before the fields that refer to it."""

    name: str


@dataclasses.dataclass(frozen=True)
class Text:
    """1 to ``max_bytes`` bytes of UTF-8."""

    max_bytes: int

    def expected(self, value: str) -> str | None:
        """Implements :meth:`Range.expected`."""
        return None if 1 <= len(value.encode()) <= self.max_bytes else f"1 to {self.max_bytes} bytes"


@dataclasses.dataclass(frozen=True)
class Hex:
    """``num_bytes`` bytes as hexadecimal digits."""

    num_bytes: int

    def expected(self, value: str) -> str | None:
        """Implements :meth:`Range.expected`."""
        digits = 2 * self.num_bytes
        return None if re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", value) else f"{digits} hexadecimal digits"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """One of ``names``; in C++ the enumeration ``enum``, whose values are their positions."""

    enum: str
    names: tuple[str, ...]

    def expected(self, value: str) -> str | None:
        """Implements :meth:`Range.expected`."""
        return None if value in self.names else " or ".join(self.names)


@dataclasses.dataclass(frozen=True)
class Native:
    """The C++ type and reader of a field, if the generator has no rule for it; Python ignores both."""

    type: str
    reader: str


def json_key(field: dataclasses.Field) -> str:
    """The JSON key of a field: its name, unless ``metadata={"key": ...}`` says otherwise (for Python keywords)."""
    return field.metadata.get("key", field.name)


def to_json(value: Any) -> Any:
    """``value`` as plain JSON types; records become objects whose keys are in field order."""
    return json.loads(json_text(value))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON of ``value``, which may hold records: identical for equal values, and compact unless ``indent`` is given."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, default=_shallow, indent=indent, separators=separators)


def _shallow(record: Any) -> dict[str, Any]:
    """The fields of a record by JSON key, without conversion."""
    return {key: getattr(record, name) for key, name in _keys(record.__class__)}


@cache
def _keys(record: Any) -> tuple[tuple[str, str], ...]:
    """JSON key and name of each field."""
    return tuple((json_key(field), field.name) for field in dataclasses.fields(record))


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
    """Build ``record`` from parsed JSON; an EngineError names a path that begins with ``where``."""
    return typing.cast(Record, _Decoder().decode_record(record, data, where))


class _Decoder:
    """Decodes one root record; ``sizes`` has the lengths of its lists so far, which later fields refer to."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def decode(self, expected: Any, data: Any, where: str) -> Any:
        if expected is Any or type(data) is expected:  # a fast path, because most values are of plain types
            return data
        origin = typing.get_origin(expected)
        if origin is typing.Annotated:
            return self._decode_annotated(expected, data, where)
        if origin is typing.Literal:
            _require(data in typing.get_args(expected), f"{typing.get_args(expected)[0]!r}", data, where)
            return data
        if dataclasses.is_dataclass(expected):
            return self.decode_record(expected, data, where)
        if origin in (typing.Union, types.UnionType):
            return self._decode_union(typing.get_args(expected), data, where)
        if origin in (list, tuple):
            return origin(self._decode_items(typing.get_args(expected), data, where))
        if origin is dict:
            _require(isinstance(data, dict), "an object", data, where)
            value_type = typing.get_args(expected)[1]
            return {key: self.decode(value_type, entry, f"{where}.{key}") for key, entry in data.items()}
        # In Python a bool is an int, and JSON may write 1.0 as 1: a field takes exactly its own type.
        fits = type(data) is expected or (expected is float and type(data) is int)
        _require(fits, getattr(expected, "__name__", str(expected)), data, where)
        return float(data) if expected is float else data

    def _decode_annotated(self, expected: Any, data: Any, where: str) -> Any:
        plain, rule = typing.get_args(expected)
        value = self.decode(plain, data, where)
        if isinstance(rule, IndexOf):
            rule = Range(0, self.sizes[rule.name] - 1)
        wanted = None if isinstance(rule, Native) else rule.expected(value)
        _require(wanted is None, str(wanted), data, where)
        return value

    def _decode_items(self, items: tuple[Any, ...], data: Any, where: str) -> list[Any]:
        """Decode a tuple; ``items`` is (type,) or (type, ...) for any number of entries, else a type for each entry."""
        _require(isinstance(data, list), "a list", data, where)
        if len(items) == 1 or items[-1] is Ellipsis:
            items = items[:1] * len(data)
        _require(len(data) == len(items), f"{len(items)} items", data, where)
        pairs = zip(items, data, strict=True)
        return [self.decode(item, entry, f"{where}[{index}]") for index, (item, entry) in enumerate(pairs)]

    def decode_record(self, record: Any, data: Any, where: str) -> Any:
        """Decode ``data`` as ``record``, field by field in the order of their declaration."""
        _require(isinstance(data, dict), "an object", data, where)
        is_root = not self.sizes
        fields = _fields(record)
        missing, unknown = sorted(fields.keys() - data.keys()), sorted(data.keys() - fields.keys())
        if missing or unknown:
            raise EngineError(
                f"{where}: expected the keys {', '.join(fields)}; missing: {', '.join(missing) or 'none'}; "
                f"unknown: {', '.join(unknown) or 'none'}. The file is damaged or of another version: make it again"
            )
        values: dict[str, Any] = {}
        self.sizes.setdefault("", 0)
        for key, (name, hint) in fields.items():
            values[name] = self.decode(hint, data[key], f"{where}.{key}")
            if is_root and isinstance(values[name], tuple):
                self.sizes[name] = len(values[name])
        return record(**values)

    def _decode_union(self, options: tuple[Any, ...], data: Any, where: str) -> Any:
        """Decode one of several records, which differ in their ``kind`` or else in their keys."""
        records: list[Any] = [option for option in options if dataclasses.is_dataclass(option)]
        if isinstance(data, dict) and records:
            alike = [record for record in records if data.get("kind") == _kind(record) is not None]
            alike = alike or [record for record in records if _fields(record).keys() == data.keys()]
            return self.decode_record((alike or records)[0], data, where)
        plain = [option for option in options if not dataclasses.is_dataclass(option)]
        for option in plain:
            base = typing.get_args(option)[0] if typing.get_origin(option) is typing.Annotated else option
            if type(data) is base:
                return self.decode(option, data, where)
        names = " or ".join(getattr(option, "__name__", str(option)) for option in options)
        raise _unexpected(names, data, where)


@cache
def _fields(record: Any) -> dict[str, tuple[str, Any]]:
    """JSON key -> (name, type) of each field."""
    hints = typing.get_type_hints(record, include_extras=True)
    return {json_key(field): (field.name, hints[field.name]) for field in dataclasses.fields(record)}


def _kind(record: Any) -> str | None:
    """The value that ``kind`` must have, if the record has such a field."""
    hint = _fields(record).get("kind", (None, None))[1]
    kind: str | None = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Literal else None
    return kind


def _require(condition: bool, expected: str, found: Any, where: str) -> None:
    if not condition:
        raise _unexpected(expected, found, where)


def _unexpected(expected: str, found: Any, where: str) -> EngineError:
    shown = repr(found) if isinstance(found, _PLAIN_TYPES) else type(found).__name__
    return EngineError(f"{where}: expected {expected}, found {shown[:80]}. The file is damaged: make it again")
