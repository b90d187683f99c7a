"""Assigns offsets in one arena so that tensors that are live at the same time do not overlap.

The largest tensor is placed first, and each into the tightest gap that is free during its whole life (Pisarchyk and
Lee, arXiv 2001.03288, "greedy by size").
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_lite.common.vocabulary import ALIGNMENT
from trtllm_lite.engine.format import align


@dataclass(frozen=True)
class Lifetime:
    """A tensor of ``num_bytes``, live from instruction ``first``, which writes it, to ``last``, its last reader."""

    num_bytes: int
    first: int
    last: int


def assign_offsets(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Return aligned offsets in the order of ``lifetimes``, and the bytes of the arena. Deterministic."""
    order = sorted(range(len(lifetimes)), key=lambda index: (-lifetimes[index].num_bytes, index))
    offsets = [0] * len(lifetimes)
    arena_bytes = 0
    occupied: dict[int, set[tuple[int, int]]] = defaultdict(set)  # ranges of bytes, by instruction
    for index in order:
        lifetime = lifetimes[index]
        size = align(lifetime.num_bytes, alignment)
        during = [occupied[instruction] for instruction in range(lifetime.first, lifetime.last + 1)]
        begin = _tightest_gap(sorted(set().union(*during)), size)
        for ranges in during:
            ranges.add((begin, begin + size))
        offsets[index] = begin
        arena_bytes = max(arena_bytes, begin + size)
    return offsets, arena_bytes


def _tightest_gap(occupied: list[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap of at least ``size`` bytes between the sorted ranges, else the last range's
    end."""
    best, best_room = None, 0
    end = 0
    for begin, stop in occupied:
        room = begin - end
        if room >= size and (best is None or room < best_room):
            best, best_room = end, room
        end = max(end, stop)
    return end if best is None else best
