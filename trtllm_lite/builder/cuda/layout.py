"""Lays out buffers: weights and state for all programs together, intermediate values of each program in one arena.

The executor places step inputs and the blocks of caches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtllm_lite.builder.arena import Lifetime, assign_offsets
from trtllm_lite.builder.cuda.operands import Operands
from trtllm_lite.common.vocabulary import DEVICE_ALIGNMENT
from trtllm_lite.engine.format import align
from trtllm_lite.engine.plan import PlanTensor
from trtllm_lite.engine.writer import weight_offsets
from trtllm_lite.plugins.launch import Buffer, Collective, Command, Matmul, Slice, TensorMap


@dataclass(frozen=True)
class Layout:
    """``index`` maps a buffer to its tensor; buffers that are never live together may share one.

    ``slot_bytes`` are the bytes of a slot of adapters.
    """

    tensors: tuple[PlanTensor, ...]
    index: dict[Buffer, int]
    arena_bytes: int
    state_bytes: int
    slot_bytes: int


def lay_out(operands: Operands, programs: Sequence[Sequence[Command]], kept: Iterable[Buffer] = ()) -> Layout:
    """Lay out tensors for all buffers that ``programs`` touch, and for all step inputs.

    State that ranks read from each other comes first, so that it has the same offset in all stages of a pipeline. The
    place of a ``kept`` buffer of the arena is never reused for other values. Buffers of equal name share a place.
    """
    layout = _Layout(operands.symbols)
    for buffer in operands.inputs.values():
        layout.add(buffer, 0)
    touched = dict.fromkeys(buffer for commands in programs for command in commands for buffer in buffers_of(command))
    state = dict.fromkeys([*operands.states_of_ranks, *(buffer for buffer in touched if buffer.kind == "state")])
    state_bytes = layout.add_in_a_row(state)
    for cache in operands.caches.values():
        layout.add(cache, operands.block.offsets.get(cache.name, 0))
    slot_bytes = layout.add_to_slot(slots for one in operands.adapted.values() for slots in (one.a, one.b, one.ranks))
    sizes = [weight.num_bytes for weight in operands.weights.values()]
    for weight, offset in zip(operands.weights, weight_offsets(sizes, DEVICE_ALIGNMENT), strict=True):
        layout.add(weight, offset)
    fixed_bytes = layout.add_in_a_row([*operands.outputs.values(), *operands.received.values(), *kept])
    arena_bytes = [layout.add_arena(commands, fixed_bytes) for commands in programs]
    return Layout(tuple(layout.tensors), layout.index, max(arena_bytes), state_bytes, slot_bytes)


def buffers_of(command: Command) -> list[Buffer]:
    """Every buffer that a command touches."""
    operands: list[Buffer | Slice | None]
    if isinstance(command, Matmul):
        operands = [command.x, command.weight, command.y, command.residual, command.bias]
    elif isinstance(command, Collective):
        operands = [command.x, command.y]
    else:
        arguments = [a.operand if isinstance(a, TensorMap) else a for a in command.arguments]
        operands = [argument for argument in arguments if isinstance(argument, Buffer | Slice)]
    return [operand.buffer if isinstance(operand, Slice) else operand for operand in operands if operand is not None]


class _Layout:
    """A layout in the making; ``places`` maps an offset and a buffer's form to the tensor that is there already."""

    def __init__(self, symbols: dict[str, int]) -> None:
        self.symbols = symbols
        self.tensors: list[PlanTensor] = []
        self.index: dict[Buffer, int] = {}
        self.places: dict[tuple[object, ...], int] = {}

    def num_bytes(self, buffer: Buffer) -> int:
        return _tensor(buffer, 0).max_bytes(self.symbols)

    def add(self, buffer: Buffer, offset: int) -> None:
        # A tensor is named after the first buffer at its place; other layers reuse the same memory.
        name = buffer.name if buffer.kind != "arena" else None
        place = (buffer.kind, buffer.dtype, buffer.shape, offset, name)
        if place not in self.places:
            self.places[place] = len(self.tensors)
            self.tensors.append(_tensor(buffer, offset))
        self.index[buffer] = self.places[place]

    def add_in_a_row(self, buffers: Iterable[Buffer]) -> int:
        """Add buffers one after the other, equal names at one place; returns the total bytes."""
        offsets: dict[str, int] = {}
        end = 0
        for buffer in buffers:
            if buffer.name not in offsets:
                offsets[buffer.name] = end
                end = align(end + self.num_bytes(buffer), DEVICE_ALIGNMENT)
            self.add(buffer, offsets[buffer.name])
        return end

    def add_to_slot(self, buffers: Iterable[Buffer]) -> int:
        """Add the matrices of adapters, which lie one after the other in each slot; returns the bytes of a slot."""
        end = 0
        for buffer in buffers:
            self.add(buffer, end)
            end = align(end + self.num_bytes(buffer) // self.symbols["num_loras"], DEVICE_ALIGNMENT)
        return end

    def add_arena(self, commands: Sequence[Command], first_byte: int) -> int:
        """Add the intermediate buffers of one program after ``first_byte``; returns the end of the arena."""
        uses: dict[Buffer, list[int]] = {}
        for number, command in enumerate(commands):
            for buffer in buffers_of(command):
                if buffer.kind == "arena" and buffer not in self.index:
                    uses.setdefault(buffer, []).append(number)
        lifetimes = [Lifetime(self.num_bytes(buffer), numbers[0], numbers[-1]) for buffer, numbers in uses.items()]
        offsets, num_bytes = assign_offsets(lifetimes, DEVICE_ALIGNMENT)
        for buffer, offset in zip(uses, offsets, strict=True):
            self.add(buffer, first_byte + offset)
        return first_byte + num_bytes


def _tensor(buffer: Buffer, offset: int) -> PlanTensor:
    return PlanTensor(buffer.name, buffer.dtype, buffer.shape, buffer.layout, buffer.kind, offset)
