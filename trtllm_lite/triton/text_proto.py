"""Writes messages in protobuf's text format, the format of Triton's ``config.pbtxt``.

https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""Fields by name. A value is a bool, a number, a string, an :class:`Enum`, a message, or a list of messages."""


@dataclass(frozen=True)
class Enum:
    """A value of an enumeration, by its name."""

    name: str


def text_of(message: Message) -> str:
    """``message`` as text, a field on each line."""
    return "".join(f"{line}\n" for line in _lines(message, ""))


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield from _nested(name, value, indent)
        elif isinstance(value, list):
            for entry in value:
                yield from _nested(name, entry, indent)
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _nested(name: str, message: Message, indent: str) -> Iterator[str]:
    yield f"{indent}{name} {{"
    yield from _lines(message, f"{indent}  ")
    yield f"{indent}}}"


def _scalar(value: bool | int | str | Enum | Sequence[int]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value.encode()))}"'
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, int) else f"[ {', '.join(map(str, value))} ]"


def _escaped(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
    return chr(byte) if plain else f"\\{byte:03o}"
