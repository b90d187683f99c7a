"""Changes protocol buffers (ONNX networks, SentencePiece models) in one place at a time."""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 7, 64, 2**15, 2**31 - 1, 2**32, 2**62, 2**63 - 1)
_TEXTS = ("", "0", "x", "-1", "../x", "/dev/zero", "\0", "▁", "x" * 30_000, str(2**62), "weights.safetensors")
_NUMBERS = (0.0, -1.0, 1e30, float("inf"), float("nan"))
_BYTES = (b"", b"\0", b"\xff" * 8, b"x" * 3000)
_MAX_COPIES = 200


def mutate(rng: random.Random, message: Message) -> None:
    """Change one field that is set, somewhere in ``message``."""
    owner, field = rng.choice(list(_fields(message)))
    if field.is_repeated:
        _change_list(rng, field, getattr(owner, field.name))
    elif rng.random() < 0.2 or field.type == FieldDescriptor.TYPE_MESSAGE:
        owner.ClearField(field.name)
    else:
        _set(owner, field, _value(rng, field, getattr(owner, field.name)))


def _fields(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _fields(inner)


def _change_list(rng: random.Random, field: FieldDescriptor, values: Any) -> None:
    at = rng.randrange(len(values))
    match rng.randrange(4):
        case 0:
            del values[at]
        case 1:
            values.extend([values[at]] * rng.choice((1, 1, 2, _MAX_COPIES)))
        case 2 if len(values) > 1:
            moved = list(values)
            rng.shuffle(moved)
            copies = [_copy(value) for value in moved]
            del values[:]
            values.extend(copies)
        case _:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                del values[at:]
            else:
                values[at] = _value(rng, field, values[at])


def _copy(value: Any) -> Any:
    if not isinstance(value, Message):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _value(rng: random.Random, field: FieldDescriptor, old: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if isinstance(old, str):
            return rng.choice((*_TEXTS, old + "_", old[1:]))
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice((*_BYTES, old[1:]))
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice(_NUMBERS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return not old
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice([value.number for value in field.enum_type.values])
        case _:
            return rng.choice((*_INTEGERS, old + 1, old - 1))


def _set(owner: Message, field: FieldDescriptor, value: Any) -> None:
    """Set a field, or leave it as it is if the value does not fit, such as a negative number into an unsigned one."""
    try:
        setattr(owner, field.name, value)
    except ValueError:
        return
