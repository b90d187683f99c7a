"""Changes JSON documents in one place at a time: a value is replaced, removed, moved or repeated."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

# Huge, negative, zero, off by one, of another type, or long; ints beyond 64 bits are legal JSON.
HOSTILE_VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, 63, 64, 65, 2**15, 2**30 - 1, 2**30, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(-(2**31), -(2**63), -(10**40), 10**40, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False, None),
    *("", "0", "num_tokens", "num_blocks", "float16", "panel64", "weight", "arena", "\x00\ud7ff\n", "x" * 30_000),
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
    """Change one value of a JSON document: replace, remove, move or repeat it."""
    paths = list(leaves(document))
    path = rng.choice(paths)
    parent, key = parent_of(document, path), path[-1]
    value = parent[key]
    match rng.randrange(7):
        case 0:
            parent[key] = copy.deepcopy(rng.choice(HOSTILE_VALUES))
        case 1:
            del parent[key]
        case 2:
            other = rng.choice(paths)
            holder = parent_of(document, other)
            if path[: len(other)] != other and other[: len(path)] != path:  # neither path contains the other
                parent[key], holder[other[-1]] = holder[other[-1]], value
        case 3 if isinstance(value, int):
            parent[key] = value + rng.choice((-64, -1, 1, 64))
        case 4 if isinstance(value, int):
            parent[key] = value * rng.choice((-1, 2, 64, 2**32))
        case 5 if isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(value))
        case 6 if isinstance(parent, dict):
            parent[rng.choice(("", "extra", f"{key}_"))] = copy.deepcopy(value)
        case _:
            parent[key] = json.loads(json.dumps(rng.choice(paths)))  # a list of keys: the wrong type almost anywhere


def mutated(rng: random.Random, document: Any) -> Any:
    """A copy of a JSON document after one to three changes."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not document:
            break
        mutate(rng, document)
    return document
