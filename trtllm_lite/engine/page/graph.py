"""Computes the geometry of the page's graphs in SVG units: the steps of a program, and the tensors between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtllm_lite.engine.outline import ArenaBox, Outline, Step
from trtllm_lite.pages.charts import NUM_COLORS

_ROW = 26
_TOP = 8
_CHARACTER = 6.5  # mean width of a character in a name
_NUMBER = 46  # room for the number of a step, and for its circle
_LANE = 18
_TIMES = 64  # room for "32 times" at the right


@dataclass(frozen=True)
class Node:
    """A step; ``y`` is its row's middle, and ``reach`` the x of the farthest lane that it touches."""

    number: int
    step: Step
    y: float
    reach: int


@dataclass(frozen=True)
class Lane:
    """A tensor of the arena, a line from the step that writes it to the last one that reads it.

    ``ys`` are the rows of all steps that touch it.
    """

    tensor: ArenaBox
    x: int
    top: float
    bottom: float
    ys: tuple[float, ...]
    color: int


@dataclass(frozen=True)
class Rows:
    """The rows of a stretch that repeats."""

    repeats: int
    y: int
    height: int


@dataclass(frozen=True)
class Graph:
    """A graph: steps go down in the order in which they run, one row each; tensors are lanes beside them."""

    width: int
    height: int
    node: int
    nodes: tuple[Node, ...]
    lanes: tuple[Lane, ...]
    repeated: tuple[Rows, ...]


def graph(outline: Outline) -> Graph:
    """The graph of a program."""
    steps = [step for stretch in outline.stretches for step in stretch.steps]
    node = _NUMBER + round(_CHARACTER * max(len(step.name) for step in steps))
    lanes = [
        _lane(steps, box, node + _LANE * (number + 1), color)
        for color, (number, box) in enumerate(zip(_lane_numbers(outline.arena), outline.arena, strict=True))
    ]
    return Graph(
        width=max((lane.x for lane in lanes), default=node) + _TIMES + _LANE,
        height=_ROW * len(steps) + 2 * _TOP,
        node=node,
        nodes=tuple(_node(number, step, node, lanes) for number, step in enumerate(steps)),
        lanes=tuple(lanes),
        repeated=tuple(_repeated(outline)),
    )


def _middle(step: int) -> float:
    return _TOP + _ROW * (step + 0.5)


def _lane_numbers(boxes: Sequence[ArenaBox]) -> Iterator[int]:
    """For each box, in order of its first step, the lowest lane that no box occupies at that step."""
    ends: list[int] = []  # by lane: the last step of its latest box
    for box in boxes:
        number = next((number for number, end in enumerate(ends) if end < box.first), len(ends))
        ends[number : number + 1] = [box.last]
        yield number


def _lane(steps: Sequence[Step], box: ArenaBox, x: int, color: int) -> Lane:
    touched = [place for place in range(box.first, box.last + 1) if box.tensor in steps[place].tensors]
    ys = tuple(map(_middle, touched or (box.first, box.last)))
    return Lane(box, x, _middle(box.first), _middle(box.last), ys, color % NUM_COLORS)


def _node(number: int, step: Step, x: int, lanes: Sequence[Lane]) -> Node:
    y = _middle(number)
    return Node(number + 1, step, y, max((lane.x for lane in lanes if y in lane.ys), default=x))


def _repeated(outline: Outline) -> Iterator[Rows]:
    first = 0
    for stretch in outline.stretches:
        if stretch.repeats > 1:
            yield Rows(stretch.repeats, _TOP + _ROW * first, _ROW * len(stretch.steps))
        first += len(stretch.steps)
