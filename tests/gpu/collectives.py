"""AllReduce on as many GPUs as there are, each with an arena and a state as an engine has them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.gpu.device import Argument, Kernel
from tests.gpu.kernels import dtype_flag
from trtllm_lite.plugins.cuda.ranks import FLAG_WORDS, INBOX_TURNS, MEETING_BLOCKS, RANKS_WORDS, inbox_rows

MAX_RANKS = (RANKS_WORDS - 7) // 2
EPSILON = 1e-5
THREADS = 512


@dataclass
class Rank:
    """What a GPU has; others find x, y and total in its ``arena``."""

    number: int
    arena: torch.Tensor
    state: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    stream: torch.cuda.Stream

    @property
    def total(self) -> torch.Tensor:
        return self.arena[2]

    def rows(self, place: int, rows: int, hidden: int) -> torch.Tensor:
        """x is at place 0, y at 1."""
        return self.arena[place, : rows * hidden].view(rows, hidden)

    @property
    def on_card(self) -> torch.cuda.device:
        return torch.cuda.device(self.number)


class Ranks:
    """Ranks whose rows have ``hidden`` elements, ``max_rows`` of them at most."""

    def __init__(self, hidden: int, max_rows: int, dtype: torch.dtype, timeout: float = 10.0) -> None:
        self.hidden, self.max_rows, self.dtype = hidden, max_rows, dtype
        self.count = torch.cuda.device_count()
        self.inbox_rows = inbox_rows(self.count)
        self.alarm = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self.ranks = [self._rank(number) for number in range(self.count)]
        for rank in self.ranks:
            for other in self.ranks:
                rank.arena[0, :1].copy_(other.arena[0, :1])  # torch then lets one card reach the other's memory
        for rank in self.ranks:
            table = [rank.number, self.count, 0, self.ranks[0].state.data_ptr()]
            for memory in ("arena", "state"):
                addresses = [getattr(one, memory).data_ptr() for one in self.ranks]
                table += addresses + [0] * (MAX_RANKS - self.count)
            words = torch.tensor([*table, self.alarm.data_ptr(), int(timeout * 1e9), 0])
            rank.state[: 8 * RANKS_WORDS] = words.view(torch.uint8).to(rank.state.device)
        self._kernels: dict[tuple[str, bool, bool], list[Kernel]] = {}
        self.synchronize()

    def _rank(self, number: int) -> Rank:
        device, elements = f"cuda:{number}", self.max_rows * self.hidden
        residual = torch.empty(elements, device=device, dtype=self.dtype)
        inbox = INBOX_TURNS * self.inbox_rows * (self.count - 1) * self.hidden * 2
        state = torch.zeros(
            8 * RANKS_WORDS + 4 * (FLAG_WORDS + self.inbox_rows) + 256 + inbox, device=device, dtype=torch.uint8
        )
        arena = torch.empty(3, elements, device=device, dtype=self.dtype)
        weight = torch.randn(self.hidden, generator=torch.Generator().manual_seed(7))
        return Rank(number, arena, state, residual, weight.to(device), torch.cuda.Stream(device))

    def kernel(self, name: str, norm: bool, two_shot: bool = False) -> list[Kernel]:
        """One for each card."""
        key = (name, norm, two_shot)
        if key not in self._kernels:
            defines: dict[str, int | str] = {"TL_HIDDEN": self.hidden, "TL_THREADS": THREADS, "TL_NORM": int(norm)}
            defines |= {"TL_RANKS": self.count, "TL_TWO_SHOT": int(two_shot)}
            defines |= {"TL_Y_TYPE": 0, "TL_ROW_SCALES": 0, "TL_FP16": dtype_flag(self.dtype)}
            defines |= {"TL_INBOX_ROWS": self.inbox_rows, "TL_MEETING_BLOCKS": MEETING_BLOCKS}
            source, self._kernels[key] = f"all_reduce/{name}.cuh", []
            for rank in self.ranks:
                with rank.on_card:
                    self._kernels[key].append(Kernel(source, f"all_reduce_{name}", THREADS, 0, defines))
        return self._kernels[key]

    def launch(self, name: str, rank: Rank, rows: int, norm: bool, two_shot: bool = False) -> None:
        """``push`` or ``pull`` on the current stream of the card of ``rank``: y (and total) of its x."""
        flags = 8 * RANKS_WORDS
        turns = flags + 4 * FLAG_WORDS
        inbox = -(-(turns + 4 * self.inbox_rows) // 256) * 256
        places = {"push": (rank.state[turns:], rank.state[inbox:], 0), "pull": (rank.state[flags:], 0, rows)}
        x, y = (rank.rows(place, rows, self.hidden) for place in (0, 1))
        of_norm: tuple[Argument, ...] = (rank.total, x, rank.weight, rank.residual) if norm else (None, x, None, None)
        kernel = self.kernel(name, norm, two_shot)[rank.number]
        grid = rows if name == "push" else MEETING_BLOCKS
        kernel(y, None, *of_norm, EPSILON, 0.0, rank.state, *places[name], grid=grid, programmatic=True)

    def run(self, launch: Callable[[Rank], None]) -> None:
        """``launch`` on all cards, whose kernels wait for each other."""
        for rank in self.ranks:
            with rank.on_card, torch.cuda.stream(rank.stream):
                launch(rank)
        self.synchronize()

    def synchronize(self) -> None:
        for rank in self.ranks:
            torch.cuda.synchronize(rank.number)
        assert int(self.alarm[0]) == 0, "a rank has waited for another too long"
