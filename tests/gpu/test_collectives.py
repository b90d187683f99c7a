"""AllReduce on several GPUs, alone: bits of sums, norms against float64, turns of the inboxes."""

import random

import pytest
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.collectives import EPSILON, Rank, Ranks

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")


def check(ranks: Ranks, name: str, rows: int, norm: bool, two_shot: bool = False) -> None:
    """New x and residuals, poisoned results."""
    shape, dtype = (rows, ranks.hidden), ranks.dtype
    residual = torch.randn(shape).to(dtype)
    parts = [torch.randn(shape).to(dtype) for _ in ranks.ranks]
    parts[0].view(-1)[::3] = -0.0
    parts[-1].view(-1)[::2] = -0.0
    for rank, part in zip(ranks.ranks, parts, strict=True):
        rank.arena.fill_(POISON)
        rank.rows(0, rows, ranks.hidden).copy_(part)
        rank.residual[: residual.numel()].copy_(residual.view(-1))
    ranks.synchronize()
    ranks.run(lambda rank: ranks.launch(name, rank, rows, norm, two_shot))
    added = parts[0].float()
    for part in parts[1:]:
        added = added + part.float()
    expected = added.to(dtype)
    if norm:
        expected = (expected.float() + residual.float()).to(dtype)
    for rank in ranks.ranks:
        y = rank.rows(1, rows, ranks.hidden).cpu()
        total = rank.total[: residual.numel()].view(shape).cpu() if norm else y
        assert torch.equal(total, expected)
        if norm:
            wide = expected.double()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
            assert_close(y, wide * scale * rank.weight.cpu().double())
        assert torch.all(torch.isnan(rank.total[residual.numel() :]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [64, 4096, 4104])
@pytest.mark.parametrize("norm", [False, True])
def test_all_reduce(hidden: int, norm: bool, dtype: torch.dtype) -> None:
    ranks = Ranks(hidden, 700, dtype)
    for rows in (1, 3, 8, 127, 129, 700):
        check(ranks, "pull", rows, norm)
        check(ranks, "pull", rows, norm, two_shot=True)
    # Each row of an inbox has its own turn, and grids differ.
    most = ranks.inbox_rows
    for rows in [1, 2, most, 1, 1, 1, *(random.randint(1, most) for _ in range(12))]:
        check(ranks, "push", rows, norm)


def test_steps_in_a_row() -> None:
    """Many launches without waiting for any: what one leaves is what the next one reads."""
    ranks, rows = Ranks(256, 64, torch.bfloat16), 64
    for rank in ranks.ranks:
        rank.arena.fill_(1.0)
        rank.residual.fill_(0.0)
    ranks.synchronize()

    for name in ("push", "pull"):
        ranks.kernel(name, False)  # which cannot be loaded while a kernel waits

    def launch(rank: Rank) -> None:
        for _ in range(100):
            ranks.launch("push", rank, rows, False)
            ranks.launch("pull", rank, rows, False)

    ranks.run(launch)
    for rank in ranks.ranks:
        assert torch.all(rank.rows(1, rows, 256) == ranks.count)


def test_a_rank_that_does_not_come_raises_the_alarm() -> None:
    ranks = Ranks(256, 64, torch.bfloat16, timeout=0.2)
    for name in ("push", "pull"):
        ranks.kernel(name, False)
    first, *_ = ranks.ranks
    with first.on_card, torch.cuda.stream(first.stream):
        for _ in range(100):  # none of which waits again
            ranks.launch("push", first, 64, False)
            ranks.launch("pull", first, 64, False)
    torch.cuda.synchronize(first.number)
    missing, site = ranks.alarm.view(torch.int32).tolist()
    assert (missing, site) == (2, 0)
