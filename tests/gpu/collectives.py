"""Specialises AllReduce and AllGather and launches them on ranks."""

from functools import cache

import torch

from tests.gpu.cards import Cards
from tests.gpu.device import Argument, Launchable
from tests.gpu.kernels import dtype_flag
from tests.gpu.memory import DTYPES
from tests.gpu.ranks import TIMEOUT, Layout, Rank, Ranks
from trtllm_lite.plugins.cuda.ranks import BARRIER_BLOCKS, INBOX_TURNS, inbox_rows
from trtllm_lite.plugins.cuda.row_scales import RowScales, row_type

EPSILON = 1e-5
SITE = 5  # the number of the collective
# Ways of AllReduce: each rank sends its rows (push), all ranks read all rows remotely (pull), only the owner of a row
# reads it (owned), or the preceding product, here replaced by a copy, stores each row on its owner (stored).
PUSH, PULL, OWNED, STORED = "push", "pull", "owned", "stored"
THREADS = 512


class AllReduce(Ranks):
    """Ranks that add up rows of ``hidden`` elements, ``max_rows`` at most; with ``norm``, a residual, too.

    Rows of y are then norms of sums, 16-bit or quantized by ``y_scales``. The grids of pulls have ``blocks`` blocks.
    """

    def __init__(
        self,
        cards: Cards,
        hidden: int,
        max_rows: int,
        dtype: torch.dtype,
        *,
        norm: bool,
        y_scales: RowScales | None = None,
        threads: int = THREADS,
        blocks: int = BARRIER_BLOCKS,
        timeout: float = TIMEOUT,
    ) -> None:
        self.hidden, self.max_rows, self.dtype, self.norm = hidden, max_rows, dtype, norm
        self.y_scales, self.threads, self.blocks = y_scales, threads, blocks
        self.inbox_rows, shape = inbox_rows(cards.count), (max_rows, hidden)
        y_type = dtype if y_scales is None else DTYPES[y_scales.dtype]
        arena: Layout = {"x": (dtype, shape), "y": (y_type, shape), "sum": (dtype, shape)}
        arena = {**arena, "row_scales": (torch.float32, (max_rows,))}
        inbox, self.rank_rows = (INBOX_TURNS, self.inbox_rows, cards.count - 1, hidden), -(-max_rows // cards.count)
        state: Layout = {"turns": (torch.int32, inbox[1:2]), "inbox": (dtype, inbox)}
        super().__init__(cards, arena, {**state, "sums": (dtype, (cards.count, self.rank_rows, hidden))}, timeout)
        weight, residual = torch.randn(hidden), torch.randn(shape).to(dtype)
        for rank in self.ranks:
            rank.tensors["weight"], rank.tensors["residual"] = (x.to(rank.arena.device) for x in (weight, residual))
        self.load = cache(self._load)

    @property
    def results(self) -> tuple[str, ...]:
        """The rows that the rank computes; sums come last."""
        return ("y", "sum") if self.norm else ("y",)

    @property
    def has_row_scales(self) -> bool:
        return self.y_scales is not None and self.y_scales.per_row

    def shows_sums(self, way: str) -> bool:
        """Whether a rank has all sums, and not only those of the rows that it owns."""
        return way != STORED or not self.norm

    def _load(self, way: str) -> list[Launchable]:
        defines: dict[str, int | str] = {"TL_HIDDEN": self.hidden, "TL_THREADS": self.threads}
        defines |= {"TL_NORM": int(self.norm), "TL_FP16": dtype_flag(self.dtype)}
        defines |= {"TL_Y_TYPE": row_type(self.y_scales), "TL_ROW_SCALES": int(self.has_row_scales)}
        if way == PUSH:
            defines["TL_INBOX_ROWS"] = self.inbox_rows
            return self.kernels("all_reduce/push.cuh", "all_reduce_push", self.threads, defines)
        defines |= {"TL_OWNED": int(way != PULL), "TL_STORED": int(way == STORED), "TL_RANK_ROWS": self.rank_rows}
        defines |= {"TL_RANKS": len(self.ranks), "TL_BARRIER_BLOCKS": BARRIER_BLOCKS}
        defines["TL_SUM_EVERYWHERE"] = int(self.shows_sums(way))
        return self.kernels("all_reduce/pull.cuh", "all_reduce_pull", self.threads, defines)

    def launch(self, way: str, rank: Rank, rows: int) -> None:
        """Launch on the card of ``rank``; returns y, and the sums and scales of rows if they are computed."""
        total, weight, residual = (rank[name] if self.norm else None for name in ("sum", "weight", "residual"))
        row_scales = rank["row_scales"] if self.has_row_scales else None
        y_scale = 0.0 if self.y_scales is None else self.y_scales.value
        x = rank["sums" if way == STORED else "x"]
        operands: tuple[Argument, ...] = (rank["y"], row_scales, total, x, weight, residual, EPSILON, y_scale)
        others: tuple[Argument, ...] = (rank["flags"], SITE, rows)
        if way == PUSH:
            others = (rank["turns"], rank["inbox"], SITE)
        kernel, grid = self.load(way)[rank.number], rows if way == PUSH else self.blocks
        kernel(*operands, rank["ranks"], *others, grid=grid, programmatic=True, memory=self.memory)


class AllGather(Ranks):
    """Ranks that gather at most ``max_rows`` rows of ``features`` float32 elements; each rank has ``part`` of a row."""

    def __init__(
        self,
        cards: Cards,
        part: int,
        features: int,
        max_rows: int,
        *,
        threads: int = THREADS,
        blocks: int = BARRIER_BLOCKS,
        timeout: float = TIMEOUT,
    ) -> None:
        self.part, self.features, self.max_rows, self.blocks = part, features, max_rows, blocks
        super().__init__(cards, {"x": (torch.float32, (max_rows, part))}, {}, timeout)
        defines: dict[str, int | str] = {"TL_BARRIER_BLOCKS": BARRIER_BLOCKS}
        self._kernels = self.kernels("all_gather/cuda.cuh", "all_gather", threads, defines)

    def launch(self, y: torch.Tensor, rank: Rank, rows: int) -> None:
        """Launch on the card of ``rank``; returns y, gathered from the x of all ranks."""
        operands = (y, rank["x"], rank["ranks"], rank["flags"], SITE, rows, self.part, self.features)
        self._kernels[rank.number](*operands, grid=self.blocks, programmatic=True, memory=self.memory)
