"""Computes the geometry of the page's drawings in SVG units: bars of memory, and maps of an arena over the steps."""

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_lite.engine.outline import ArenaBox, Outline
from trtllm_lite.pages.charts import NUM_COLORS

BAR_WIDTH = 1000.0

_COLUMN = 40
_LEFT = 74  # room for labels of sizes
_TOP = 34  # room for numbers of steps
_HEIGHT = 240
_LEAST = 2.5  # height of the smallest box, so that small tensors are visible


@dataclass(frozen=True)
class Segment:
    """A part of a bar, which is ``BAR_WIDTH`` wide."""

    name: str
    num_bytes: int
    share: float
    x: float
    width: float
    color: int


def bar(parts: Mapping[str, int]) -> list[Segment]:
    """The parts of a bar in a row; their widths are in proportion to the bytes."""
    total = sum(parts.values()) or 1
    segments: list[Segment] = []
    end = 0.0
    for color, (name, size) in enumerate(parts.items()):
        width = BAR_WIDTH * size / total
        segments.append(Segment(name, size, size / total, round(end, 1), round(width, 1), color % NUM_COLORS))
        end += width
    return segments


@dataclass(frozen=True)
class Box:
    """A tensor's rectangle; ``number`` is the number of its row in the table."""

    number: int
    tensor: ArenaBox
    x: int
    y: float
    width: int
    height: float
    color: int


@dataclass(frozen=True)
class Column:
    """A step, whose column begins at ``x``."""

    number: int
    x: int


@dataclass(frozen=True)
class Band:
    """The steps of a stretch, drawn behind the boxes."""

    repeats: int
    x: int
    width: int


@dataclass(frozen=True)
class Mark:
    """A line at an offset."""

    num_bytes: int
    y: float


@dataclass(frozen=True)
class ArenaMap:
    """A map of an arena: time goes from left to right, one column for each step; offsets go down."""

    width: int
    height: int
    left: int
    column: int
    boxes: tuple[Box, ...]
    columns: tuple[Column, ...]
    bands: tuple[Band, ...]
    marks: tuple[Mark, ...]


def arena_map(outline: Outline, arena_bytes: int) -> ArenaMap:
    """The map of a program's arena."""
    scale = _HEIGHT / max(arena_bytes, 1)
    boxes = tuple(_box(number, tensor, scale) for number, tensor in enumerate(outline.arena, 1))
    bands, num_steps = [], 0
    for stretch in outline.stretches:
        bands.append(Band(stretch.repeats, _LEFT + _COLUMN * num_steps, _COLUMN * len(stretch.steps)))
        num_steps += len(stretch.steps)
    return ArenaMap(
        width=_LEFT + _COLUMN * num_steps + 2,
        height=_TOP + _HEIGHT + 8,
        left=_LEFT,
        column=_COLUMN,
        boxes=boxes,
        columns=tuple(Column(number + 1, _LEFT + _COLUMN * number) for number in range(num_steps)),
        bands=tuple(bands),
        marks=tuple(Mark(arena_bytes * part // 4, round(_TOP + _HEIGHT * part / 4, 1)) for part in range(5)),
    )


def _box(number: int, tensor: ArenaBox, scale: float) -> Box:
    return Box(
        number=number,
        tensor=tensor,
        x=_LEFT + _COLUMN * tensor.first + 1,
        y=round(_TOP + tensor.offset * scale, 1),
        width=_COLUMN * (tensor.last + 1 - tensor.first) - 2,
        height=round(max(tensor.num_bytes * scale, _LEAST), 1),
        color=(number - 1) % NUM_COLORS,
    )
