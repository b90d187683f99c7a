"""Computes when the tensors of an arena hold their values, as far as a plan shows."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from trtllm_lite.engine.plan import (
    BoxedTensor,
    CallInstruction,
    Instruction,
    LaunchInstruction,
    Plan,
    Program,
    TensorArgument,
    TensorMapArgument,
)


@dataclass(frozen=True)
class Span:
    """Tensor number ``tensor`` is in use from instruction ``first`` to ``last``, both inclusive."""

    tensor: int
    first: int
    last: int


def touched(instruction: Instruction) -> list[int]:
    """Numbers of the tensors that an instruction reads or writes, each once, in the order of its operands."""
    return list(dict.fromkeys(_operands(instruction)))


def _operands(instruction: Instruction) -> Iterator[int]:
    if isinstance(instruction, CallInstruction):
        yield from instruction.operands.values()
        return
    values = instruction.args if isinstance(instruction, LaunchInstruction) else vars(instruction).values()
    for value in values:
        operand = value.tensor_map if isinstance(value, TensorMapArgument) else value
        if isinstance(operand, TensorArgument | BoxedTensor):
            yield operand.tensor


def arena_spans(plan: Plan, program: Program) -> list[Span]:
    """The spans of all tensors in the arena that ``program`` uses, by their first instruction.

    A plan does not say which operands a kernel writes. A span therefore reaches from a use of a tensor to its last use
    before another tensor takes some of its bytes; spans of tensors that a stage has received begin with the program.
    """
    ends = {
        index: tensor.offset + max(plan.max_bytes(tensor), 1)
        for index, tensor in enumerate(plan.tensors)
        if tensor.kind == "arena"
    }
    spans: list[Span] = []
    open_spans = {index: Span(index, 0, 0) for index in plan.inputs.values()}
    # Offset and tensor of each open span; the bytes of open spans do not overlap.
    places = sorted((plan.tensors[index].offset, index) for index in open_spans)
    for number, instruction in enumerate(program.instructions):
        for tensor in (index for index in touched(instruction) if index in ends):
            if tensor in open_spans:
                open_spans[tensor] = Span(tensor, open_spans[tensor].first, number)
                continue
            offset = plan.tensors[tensor].offset
            for place in _overlapping(places, ends, offset, ends[tensor]):
                places.remove(place)
                spans.append(open_spans.pop(place[1]))
            insort(places, (offset, tensor))
            open_spans[tensor] = Span(tensor, number, number)
    return sorted((*spans, *open_spans.values()), key=lambda span: (span.first, span.tensor))


def _overlapping(places: list[tuple[int, int]], ends: dict[int, int], begin: int, end: int) -> list[tuple[int, int]]:
    """The ``places`` that share bytes with the range from ``begin`` to ``end``."""
    first = bisect_left(places, (begin, -1))
    if first > 0 and ends[places[first - 1][1]] > begin:
        first -= 1
    return places[first : bisect_left(places, (end, -1))]
