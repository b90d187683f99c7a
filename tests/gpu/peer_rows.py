"""Products that store their rows in the memory of other ranks, and the kernels that wait for these rows."""

from dataclasses import dataclass, field

import torch

from tests.gpu.cards import Cards
from tests.gpu.checks import assert_close
from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from tests.gpu.ranks import TIMEOUT, Layout, Rank, Ranks
from trtllm_lite.plugins.cuda.few_rows import FewRows, few_rows_config
from trtllm_lite.plugins.cuda.peer_rows import PeerRows, on_first_rank, on_owners
from trtllm_lite.plugins.cuda.ranks import BARRIER_BLOCKS
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.launch import Buffer, Launch, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear

SITE = 3
_UNWRITTEN = 0xFF


@dataclass(frozen=True)
class Shape:
    """The extents of a product on each rank: y [rows, out] from x [at most capacity, in_features].

    It is computed by ``tiles`` if given, or else by GEMV.
    """

    out: int
    in_features: int
    capacity: int
    tiles: TileConfig | None = field(default=None)
    dtype: torch.dtype = torch.bfloat16


class _Products(Ranks):
    def __init__(self, cards: Cards, shape: Shape, arena: Layout, state: Layout) -> None:
        super().__init__(cards, arena, state, TIMEOUT)
        self.shape = shape
        for rank in self.ranks:
            weight = torch.randn(shape.out, shape.in_features).to(shape.dtype)
            rank.tensors["weight"] = weight.to(rank.arena.device)
            rank.tensors["x"] = rank["weight"].new_zeros(shape.capacity, shape.in_features)

    def product(self, rank: Rank, y: torch.Tensor, peers: PeerRows, memory: Memory, rows: int) -> Prepared:
        """The product y of the rank's x."""
        shape, dtype = self.shape, NAMES[self.shape.dtype]
        operands = (memory("y", y), memory("x", rank["x"]), WeightBuffers(memory("weight", rank["weight"])))
        if shape.tiles is not None:
            how = Tiling(dtype, H200, shape.tiles, shape.capacity)
            launch: Launch = linear.tiled(*operands, symbol("rows"), how, peers=peers)
        else:
            form = weight_form(dtype, None, None)
            config = few_rows_config((shape.out, shape.in_features), form, shape.capacity, H200)
            assert config is not None
            few_rows = FewRows(shape.capacity, dtype, H200, config)
            launch = linear.stream(*operands, symbol("rows"), few_rows, peers=peers)
        return Prepared(launch, memory.tensors, {"rows": rows}, self.cards, self.memory)

    def renew(self, rows: int) -> list[torch.Tensor]:
        """Write new random values to x on each rank; returns the float64 products."""
        products = []
        for rank in self.ranks:
            x = torch.randn(rows, self.shape.in_features).to(self.shape.dtype)
            rank["x"][:rows].copy_(x)
            products.append(x.double() @ rank["weight"].cpu().double().T)
        self.cards.synchronize()
        return products

    def run_products(self, prepared: list[Prepared]) -> None:
        self.run(lambda rank: prepared[rank.number](programmatic=True))


def check_stored_on_owners(cards: Cards, shape: Shape, rows: int) -> None:
    """Check that row r of all ranks is on rank r % count, and that nothing else is written."""
    count = cards.count
    rank_rows = -(-shape.capacity // count)
    sums: Layout = {"sums": (shape.dtype, (count, rank_rows, shape.out))}
    ranks = _Products(cards, shape, {"nothing": (torch.uint8, (1,))}, sums)
    prepared = []
    for rank in ranks.ranks:
        rank["sums"].view(torch.uint8).fill_(_UNWRITTEN)
        memory = Memory()
        state = memory("ranks", rank["ranks"])
        peers = on_owners(state, Buffer("rank_sums", "bfloat16", (count, rank_rows, shape.out)))
        with cards.on(rank.number):
            prepared.append(ranks.product(rank, rank["sums"], peers, memory, rows))
    products = ranks.renew(rows)
    ranks.run_products(prepared)
    for owner in ranks.ranks:
        found = owner["sums"].cpu()
        for part, product in zip(found, products, strict=True):
            expected = product[owner.number :: count]
            if len(expected) > 0:
                assert_close(part[: len(expected)], expected)
            assert torch.all(part[len(expected) :].view(torch.uint8) == _UNWRITTEN)


def check_stored_logits(cards: Cards, shape: Shape, rows: int, leaves: int = 0) -> None:
    """Check that the first rank has all ranks' float32 rows, without the last ``leaves`` features, after its wait."""
    features = cards.count * shape.out - leaves
    logits: Layout = {"logits": (torch.float32, (shape.capacity, features))}
    ranks = _Products(cards, shape, logits, {})
    prepared = []
    waits = ranks.kernels("all_gather/cuda.cuh", "rows_are_there", 32, {"TL_BARRIER_BLOCKS": BARRIER_BLOCKS})
    for rank in ranks.ranks:
        rank.arena.fill_(_UNWRITTEN)
        memory = Memory()
        peers = on_first_rank(memory("ranks", rank["ranks"]), features)
        with cards.on(rank.number):
            prepared.append(ranks.product(rank, rank["logits"], peers, memory, rows))
    products = ranks.renew(rows)

    def launch(rank: Rank) -> None:
        prepared[rank.number](programmatic=True)
        operands = (rank["ranks"], rank["flags"], SITE)
        waits[rank.number](*operands, grid=1, programmatic=True, memory=ranks.memory)

    ranks.run(launch)
    found = ranks.ranks[0]["logits"].cpu()
    assert_close(found[:rows], torch.cat(products, -1)[:, :features])
    assert torch.all(found[rows:].contiguous().view(torch.uint8) == _UNWRITTEN)
