"""Hostile variants of an engine file: damaged bytes, and changed documents whose checksums are right again."""

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

from tests.unit.csrc.tiny_engine import TinyEngine

# Huge, negative, zero, off by one, of another type, or long; ints beyond 64 bits are legal JSON.
HOSTILE_VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, 63, 64, 65, 2**15, 2**30 - 1, 2**30, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(-(2**31), -(2**63), -(10**40), 10**40, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False, None),
    *("", "0", "num_tokens", "num_blocks", "float16", "panel64", "weight", "arena", "\x00\ud7ff\n", "x" * 3000),
    *([], {}, [[]], {"": None}),
)


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Paths of everything inside a JSON document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from leaves(child, (*path, key))


def parent_of(document: Any, path: tuple) -> Any:
    """The container that holds ``path``."""
    for key in path[:-1]:
        document = document[key]
    return document


def mutate(rng: random.Random, document: Any) -> None:
    """Changes one place of a JSON document."""
    paths = list(leaves(document))
    path = rng.choice(paths)
    parent, key = parent_of(document, path), path[-1]
    value = parent[key]
    match rng.randrange(7):
        case 0:
            parent[key] = rng.choice(HOSTILE_VALUES)
        case 1:
            del parent[key]
        case 2:
            other = rng.choice(paths)
            holder = parent_of(document, other)
            if path[: len(other)] != other and other[: len(path)] != path:  # neither contains the other
                parent[key], holder[other[-1]] = holder[other[-1]], value
        case 3 if isinstance(value, int):
            parent[key] = value + rng.choice((-64, -1, 1, 64))
        case 4 if isinstance(value, int):
            parent[key] = value * rng.choice((-1, 2, 64, 2**32))
        case 5 if isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), value)
        case 6 if isinstance(parent, dict):
            parent[rng.choice(("", "extra", f"{key}_"))] = value
        case _:
            parent[key] = json.loads(json.dumps(rng.choice(paths)))  # a list of keys: of the wrong type nearly anywhere


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, a part cut out, repeated or zeroed, the end cut off or added to, or the header length changed."""
    damaged = bytearray(data)
    at = rng.randrange(len(data))
    length = rng.choice((1, 2, 8, 64, 1000))
    match rng.randrange(6):
        case 0:
            for _ in range(rng.choice((1, 1, 2, 16))):
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del damaged[at:]
        case 2:
            damaged += rng.randbytes(length)
        case 3:
            damaged[at : at + length] = b"\0" * rng.choice((0, length))
        case 4:
            damaged[at:at] = damaged[at : at + length]
        case 5:
            lengths = (0, 1, 56, 2**16, 2**24, 2**31, 2**63, 2**64 - 1, 2**64 - 8, rng.randrange(len(data)))
            damaged[:8] = struct.pack("<Q", rng.choice(lengths))
    return bytes(damaged)


def changed_plan(rng: random.Random, engine: TinyEngine) -> bytes:
    """One to three changes of the plan or the manifest, checksums right."""
    engine = engine.copy()
    document = engine.manifest if rng.random() < 0.15 else engine.plan
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate(rng, document)
    return engine.to_bytes()


def moved_arena(rng: random.Random, engine: TinyEngine) -> bytes:
    """Arena tensors at other offsets, and calls with other operands: valid JSON, often an invalid program."""
    engine = engine.copy()
    tensors = engine.plan["tensors"]
    for _ in range(rng.choice((1, 2, 4))):
        if rng.random() < 0.5:
            tensor = rng.choice([tensor for tensor in tensors if tensor["kind"] == "arena"])
            tensor["offset"] = rng.randrange(0, engine.plan["arena_bytes"] + 128, 64)
        else:
            operands = rng.choice(engine.instructions())["operands"]
            operands[rng.choice(list(operands))] = rng.randrange(len(tensors))
    return engine.to_bytes()


def changed_shapes(rng: random.Random, engine: TinyEngine) -> bytes:
    """One extent changed everywhere it occurs: often consistent, now and then beyond what it indexes."""
    engine = engine.copy()
    extents = sorted({extent for tensor in engine.plan["tensors"] for extent in tensor["shape"]}, key=str)
    old, new = rng.choice(extents), rng.choice([*extents, *HOSTILE_VALUES[:16]])
    for tensor in engine.plan["tensors"]:
        if rng.random() < 0.9:
            tensor["shape"] = [new if extent == old else extent for extent in tensor["shape"]]
    return engine.to_bytes()


def changed_header(rng: random.Random, engine: TinyEngine) -> bytes:
    """One or two changes of the safetensors header, its checksum right."""

    def edit(header: dict[str, Any]) -> None:
        target = header["__metadata__"] if rng.random() < 0.3 else header
        for _ in range(rng.choice((1, 1, 2))):
            mutate(rng, target)

    return engine.to_bytes(edit_header=edit)


def changed_text(rng: random.Random, engine: TinyEngine) -> bytes:
    """The text of a document changed without regard to syntax: brackets, quotes, nesting, bytes that are not UTF-8."""
    documents = engine.documents()
    name = rng.choice(("manifest", "plan"))
    text = bytearray(documents[name])
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(text))
        pieces = (
            b"[" * 40,
            b"{" * 5,
            b'{"a":' * 100_000,
            b"]",
            b"}",
            b'"',
            b"\\u12",
            b"\xff\xfe",
            b"\0",
            b"1e999",
            b"-",
            b",",
        )
        text[at : at + rng.choice((0, 1, 5))] = rng.choice(pieces)
    return engine.to_bytes(documents={**documents, name: bytes(text)})


KINDS = {
    "bytes": lambda rng, engine: damaged_bytes(rng, engine.to_bytes()),
    "plan": changed_plan,
    "arena": moved_arena,
    "shapes": changed_shapes,
    "header": changed_header,
    "text": changed_text,
}
