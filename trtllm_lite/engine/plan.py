"""The engine's program: instructions over tensors with static offsets. The C++ reader parses the same JSON.

Extents are integers or symbols; ``Plan.symbols`` bounds each symbol from above, and the arena is sized by the bounds.
"""

import json
from dataclasses import dataclass
from math import prod

from trtllm_lite.engine.format import ITEM_BYTES
from trtllm_lite.engine.records import from_json, parse_json, to_json

ABSENT = -1  # tensor index of an optional operand that is not there


@dataclass(frozen=True)
class PlanTensor:
    """One tensor. ``shape`` is logical; ``layout`` (plugins/README.md) says how a weight's bytes lie.

    ``kind`` and ``offset`` (bytes): ``arena``, offset in the arena; ``weight``, offset in the engine's data section,
    where the entry ``weights.<name>`` starts; ``input`` (set by each step) and ``cache`` (paged, updated in place), 0.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    layout: str
    kind: str
    offset: int

    def max_bytes(self, symbols: dict[str, int]) -> int:
        """Bytes in row-major order when every symbol is at its bound."""
        return prod(symbols[d] if isinstance(d, str) else d for d in self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Instruction:
    """``call``: run kernel ``op`` on tensors given by index (:data:`ABSENT`: none), in schema order.

    An output that aliases an input repeats the input's index.
    """

    kind: str
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, int | float]


@dataclass(frozen=True)
class Plan:
    """``outputs`` maps the name of a result to its tensor index."""

    symbols: dict[str, int]
    arena_bytes: int
    tensors: tuple[PlanTensor, ...]
    outputs: dict[str, int]
    instructions: tuple[Instruction, ...]

    def to_json(self) -> str:
        """Compact JSON, identical for equal plans."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Parse; a missing or unknown key or a wrong type is an EngineError."""
        return from_json(cls, parse_json(text, "plan"), "plan")
