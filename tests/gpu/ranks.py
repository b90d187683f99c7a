"""Ranks of an engine, each with an arena and a state on its own card."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tests.gpu.cards import Cards
from tests.gpu.device import Launchable
from trtllm_lite.plugins.cuda.ranks import FLAG_WORDS, RANKS_WORDS

TIMEOUT = 10.0
FIRST = 3  # index of the first rank; ranks of other stages come before it
_MAX_RANKS = (RANKS_WORDS - 7) // 2
_ALIGNMENT = 256

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # type and shape of tensors, by name
_TABLE: Layout = {"ranks": (torch.int64, (RANKS_WORDS,)), "flags": (torch.int32, (FLAG_WORDS,))}


@dataclass(frozen=True)
class Rank:
    """The memory of a rank: ``tensors`` in its arena and its state, which other ranks reach, and private tensors."""

    number: int
    arena: torch.Tensor
    state: torch.Tensor
    tensors: dict[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def _laid_out(layout: Layout, device: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Zeroed memory, and the tensors in it."""
    places, end = {}, 0
    for name, (dtype, shape) in layout.items():
        places[name] = slice(end, end + torch.Size(shape).numel() * dtype.itemsize)
        end = -(-places[name].stop // _ALIGNMENT) * _ALIGNMENT
    memory = torch.zeros(end, device=device, dtype=torch.uint8)
    return memory, {name: memory[places[name]].view(dtype).view(shape) for name, (dtype, shape) in layout.items()}


def rank_table(
    number: int, first: int, drawing: int, arenas: list[int], states: list[int], alarm: int, timeout: float
) -> torch.Tensor:
    """A ``RankTable`` (``rank_table.cuh``) of rank ``number`` of a stage; ``arenas`` and ``states`` are addresses."""
    words = [number, len(arenas), first, drawing]
    for memory in (arenas, states):
        words += [*memory, *[0] * (_MAX_RANKS - len(memory))]
    return torch.tensor([*words, alarm, int(timeout * 1e9), 0])


class Ranks:
    """A rank on each of ``cards``; a rank that waits ``timeout`` seconds for another raises the alarm."""

    def __init__(self, cards: Cards, arena: Layout, state: Layout, timeout: float) -> None:
        self.cards, self.ranks = cards, []
        for number in range(cards.count):
            with cards.on(number):
                in_arena, in_state = (_laid_out(layout, cards.device) for layout in (arena, {**_TABLE, **state}))
            self.ranks.append(Rank(number, in_arena[0], in_state[0], in_arena[1] | in_state[1]))
        cards.synchronize()
        for rank in self.ranks:
            for other in self.ranks:
                rank.arena[:1].copy_(other.arena[:1])  # makes torch enable access from one card to the other's memory
        self.alarm = torch.zeros(1, dtype=torch.int64, pin_memory=cards.device != "cpu")
        for rank in self.ranks:
            rank["ranks"].copy_(self._table(rank.number, timeout))
        self.memory = [memory for rank in self.ranks for memory in (rank.arena, rank.state)]
        cards.synchronize()

    def _table(self, number: int, timeout: float) -> torch.Tensor:
        arenas, states = ([getattr(rank, name).data_ptr() for rank in self.ranks] for name in ("arena", "state"))
        return rank_table(number, FIRST, states[0], arenas, states, self.alarm.data_ptr(), timeout)

    def kernels(self, source: str, name: str, threads: int, defines: dict[str, int | str]) -> list[Launchable]:
        """Load one kernel for each rank; a GPU can load none while a kernel waits for another rank."""
        found = []
        for rank in self.ranks:
            with self.cards.on(rank.number):
                found.append(self.cards.kernel(source, name, threads, 0, defines))
        return found

    def run(self, launch: Callable[[Rank], None]) -> None:
        """Run ``launch`` on all cards, whose kernels wait for each other."""
        for rank in self.ranks:
            with self.cards.on(rank.number):
                launch(rank)
        self.finish()

    def finish(self) -> None:
        """Return when all launches have ended; fails if a rank was given up."""
        self.cards.synchronize()
        assert int(self.alarm[0]) == 0, "a rank has waited for another too long"
