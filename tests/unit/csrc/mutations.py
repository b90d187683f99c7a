"""Hostile variants of an engine file: damaged bytes, and changed documents whose checksums are right again."""

import random
from typing import Any

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import HOSTILE_VALUES, mutate
from tests.unit.csrc.tiny_engine import TinyEngine


def _with_modules(engine: TinyEngine) -> TinyEngine:
    """A copy whose manifest describes the module as it is before any change."""
    engine = engine.copy()
    engine.fix_modules()
    return engine


def changed_plan(rng: random.Random, engine: TinyEngine) -> bytes:
    """One to three changes of the plan or the manifest, with correct checksums."""
    engine = _with_modules(engine)
    document = engine.manifest if rng.random() < 0.15 else engine.plan
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate(rng, document)
    return engine.to_bytes()


def changed_manifest(rng: random.Random, engine: TinyEngine) -> bytes:
    """One or two changes of the manifest, with correct checksums."""
    engine = _with_modules(engine)
    for _ in range(rng.choice((1, 1, 2))):
        mutate(rng, engine.manifest)
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
    """One extent changed everywhere it occurs: the plan is often consistent, but may index past the end of a tensor."""
    engine = engine.copy()
    extents = sorted({extent for tensor in engine.plan["tensors"] for extent in tensor["shape"]}, key=str)
    old, new = rng.choice(extents), rng.choice([*extents, *HOSTILE_VALUES[:16]])
    for tensor in engine.plan["tensors"]:
        if rng.random() < 0.9:
            tensor["shape"] = [new if extent == old else extent for extent in tensor["shape"]]
    return engine.to_bytes()


def changed_header(rng: random.Random, engine: TinyEngine) -> bytes:
    """One or two changes of the safetensors header, with a correct checksum."""

    def edit(header: dict[str, Any]) -> None:
        target = header["__metadata__"] if rng.random() < 0.3 else header
        for _ in range(rng.choice((1, 1, 2))):
            mutate(rng, target)

    return engine.to_bytes(edit_header=edit)


def changed_text(rng: random.Random, engine: TinyEngine) -> bytes:
    """The text of a document changed without regard to syntax: brackets, quotes, nesting, bytes that are not UTF-8."""
    documents = engine.documents()
    name = rng.choice(("manifest", "plan"))
    return engine.to_bytes(documents={**documents, name: damaged_text(rng, documents[name])})


KINDS = {
    "bytes": lambda rng, engine: damaged(rng, engine.to_bytes()),
    "plan": changed_plan,
    "arena": moved_arena,
    "shapes": changed_shapes,
    "header": changed_header,
    "text": changed_text,
}
