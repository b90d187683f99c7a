"""Checks of AllReduce and AllGather: exact sums, norms against float64, several launches in a row, a missing rank."""

from collections.abc import Sequence

import torch

from tests.gpu.byte_checks import assert_rounded
from tests.gpu.checks import POISON, assert_close
from tests.gpu.collectives import EPSILON, SITE, STORED, AllGather, AllReduce
from tests.gpu.ranks import FIRST, Rank, Ranks

_UNWRITTEN = 0xFF  # a NaN in every type of floating point
_COPY_THREADS = 128
_LARGE = {torch.float16: 2.0**13, torch.bfloat16: 2.0**20, torch.float32: 2.0**30}


def check_all_reduce(reduce: AllReduce, way: str, rows: int) -> None:
    """Check one launch: all ranks have the same bits, and nothing else is written."""
    parts = _random_parts(reduce, rows, reduce.hidden, dtype=reduce.dtype)
    for rank, part in zip(reduce.ranks, parts, strict=True):
        rank.arena.fill_(_UNWRITTEN)
        for to, own in _places(reduce, way, rank, rows):
            to[: len(part[own])].copy_(part[own])
    reduce.cards.synchronize()
    reduce.load(way)
    reduce.run(lambda rank: reduce.launch(way, rank, rows))
    first, expected = reduce.ranks[0], _sums(reduce, parts)
    for rank in reduce.ranks:
        _check_results(reduce, way, rank, expected, [rank[name][:rows].cpu() for name in reduce.results])
        for name in ("y", "sum", "row_scales"):
            assert torch.all(_bits(rank[name][rows:]) == _UNWRITTEN)
            if name != "sum" or reduce.shows_sums(way):
                assert torch.equal(_bits(rank[name]), _bits(first[name]))
            else:
                assert torch.all(_bits(rank[name][:rows][~_owned(reduce, rank, rows)]) == _UNWRITTEN)


def check_turns(reduce: AllReduce, ways: Sequence[str], turns: int) -> None:
    """Check consecutive launches in random ``ways`` with random numbers of rows; x is new before each launch."""
    parts = _random_parts(reduce, turns, reduce.max_rows, reduce.hidden, dtype=reduce.dtype)
    copies = _Copies(reduce, reduce.hidden * reduce.dtype.itemsize)
    inputs = [part.to(rank.arena.device) for part, rank in zip(parts, reduce.ranks, strict=True)]
    found = [{name: torch.full_like(x, POISON) for name in reduce.results} for x in inputs]
    most = min(reduce.inbox_rows, reduce.max_rows)
    plan = [(ways[_below(len(ways))], 1 + _below(most)) for _ in range(turns)]
    for way in ways:
        reduce.load(way)
    reduce.cards.synchronize()

    def launch(rank: Rank) -> None:
        for turn, (way, rows) in enumerate(plan):
            for to, own in _places(reduce, way, rank, rows):
                copies(rank, to, inputs[rank.number][turn], own)
            reduce.launch(way, rank, rows)
            for name, rows_of in found[rank.number].items():
                copies(rank, rows_of[turn], rank[name], slice(0, rows))

    reduce.run(launch)
    for turn, (way, rows) in enumerate(plan):
        expected = _sums(reduce, [part[turn, :rows] for part in parts])
        for rank in reduce.ranks:
            results = [rows_of[turn, :rows].cpu() for rows_of in found[rank.number].values()]
            _check_results(reduce, way, rank, expected, results)


def check_all_gather(gather: AllGather, turns: int) -> None:
    """Check consecutive launches with random numbers of rows; x is written anew before each launch."""
    parts = _random_parts(gather, turns, gather.max_rows, gather.part, dtype=torch.float32)
    copies = _Copies(gather, gather.part * parts[0].itemsize)
    inputs = [part.to(rank.arena.device) for part, rank in zip(parts, gather.ranks, strict=True)]
    found = [torch.full((*x.shape[:2], gather.features), POISON, device=x.device) for x in inputs]
    plan = [1 + _below(gather.max_rows) for _ in range(turns)]
    gather.cards.synchronize()

    def launch(rank: Rank) -> None:
        for turn, rows in enumerate(plan):
            copies(rank, rank["x"], inputs[rank.number][turn], slice(0, rows))
            gather.launch(found[rank.number][turn], rank, rows)

    gather.run(launch)
    for turn, rows in enumerate(plan):
        expected = torch.full_like(found[0][turn], POISON, device="cpu")
        expected[:rows] = torch.cat([part[turn, :rows] for part in parts], -1)[:, : gather.features]
        for results in found:
            assert torch.equal(_bits(results[turn]), _bits(expected))


def check_missing(reduce: AllReduce, ways: Sequence[str], turns: int) -> None:
    """Check that the kernels of other ranks end after one wait for the last, and that the alarm names that rank."""
    *present, missing = reduce.ranks
    for way in ways:
        reduce.load(way)
    for rank in present:
        with reduce.cards.on(rank.number):
            for turn in range(turns):
                reduce.launch(ways[turn % len(ways)], rank, reduce.max_rows)
    reduce.cards.synchronize()
    assert reduce.alarm.view(torch.int32).tolist() == [FIRST + missing.number + 1, SITE]
    for rank in reduce.ranks:
        assert int(rank["ranks"][-1]) != 0  # RankTable::is_over, the last entry: a rank raised the alarm


class _Copies:
    """A kernel on each rank that copies rows of ``row_bytes`` when it runs."""

    def __init__(self, ranks: Ranks, row_bytes: int) -> None:
        defines: dict[str, int | str] = {"TL_HIDDEN": row_bytes // 2}
        self._kernels = ranks.kernels("gather_rows/cuda.cuh", "gather_rows", _COPY_THREADS, defines)
        count, numbers = len(ranks.ranks), torch.arange(len(ranks.ranks[0]["x"]), dtype=torch.int32)
        orders = {(first, step): numbers[first::step].contiguous() for step in {1, count} for first in range(step)}
        self._orders = [{key: order.to(rank.arena.device) for key, order in orders.items()} for rank in ranks.ranks]

    def __call__(self, rank: Rank, to: torch.Tensor, source: torch.Tensor, own: slice) -> None:
        """Copy the rows ``own`` of ``source`` to ``to``."""
        order = self._orders[rank.number][own.start, own.step or 1]
        rows = len(range(len(source))[own])
        if rows > 0:
            self._kernels[rank.number](to, source, order, grid=rows, programmatic=True)


def _below(limit: int) -> int:
    return int(torch.randint(limit, ()))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().view(torch.uint8)


def _random_parts(ranks: Ranks, *shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """The x of each rank: some words are -0, and large numbers make sums depend on their order."""
    parts = [torch.randn(shape).to(dtype) for _ in ranks.ranks]
    first, last = (part.view(-1, 8) for part in (parts[0], parts[-1]))
    first[:, :3] = -0.0
    last[:, ::2] = -0.0
    first[:, 5] *= _LARGE[dtype]
    last[:, 5] = -first[:, 5]
    return parts


def _sums(reduce: AllReduce, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sums in float32 in the order of ranks, rounded to 16 bits; with a norm, sums include the residual."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    rounded = total.to(reduce.dtype)
    if not reduce.norm:
        return rounded
    return (rounded.float() + reduce.ranks[0]["residual"][: len(total)].cpu().float()).to(reduce.dtype)


def _places(reduce: AllReduce, way: str, rank: Rank, rows: int) -> list[tuple[torch.Tensor, slice]]:
    """The destination of each of the ``rows`` of a rank, and the rows that come to it."""
    if way != STORED:
        return [(rank["x"], slice(0, rows))]
    count = len(reduce.ranks)
    return [(owner["sums"][rank.number], slice(owner.number, rows, count)) for owner in reduce.ranks]


def _owned(reduce: AllReduce, rank: Rank, rows: int) -> torch.Tensor:
    """The rows that a rank owns."""
    return torch.arange(rows) % len(reduce.ranks) == rank.number


def _check_results(
    reduce: AllReduce, way: str, rank: Rank, expected: torch.Tensor, results: Sequence[torch.Tensor]
) -> None:
    known = torch.ones(len(expected), dtype=torch.bool)
    if not reduce.shows_sums(way):
        known = _owned(reduce, rank, len(expected))
    assert torch.equal(results[-1][known], expected[known])
    if not reduce.norm:
        return
    y = results[0]
    wide = expected.double()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * rank["weight"].cpu().double()
    if reduce.y_scales is None:
        assert_close(y, normal)
    else:
        static = None if reduce.y_scales.per_row else reduce.y_scales.value
        assert_rounded(y, rank["row_scales"][: len(y)].cpu(), normal, reduce.dtype, static)
