"""Collectives without a GPU: some ranks run ahead of others, and words arrive one by one."""

from typing import Any

import pytest
import torch

from tests.emulated.cards import EmulatedCards
from tests.gpu.collective_checks import check_all_gather, check_all_reduce, check_missing, check_turns
from tests.gpu.collectives import OWNED, PULL, PUSH, STORED, AllGather, AllReduce
from tests.gpu.peer_rows import Shape, check_stored_logits, check_stored_on_owners
from trtllm_lite.plugins.cuda.row_scales import E4M3, RowScales
from trtllm_lite.plugins.cuda.tiles import TileConfig

WAYS = [PUSH, PULL, OWNED, STORED]
# Ranks wait for 20 million turns of the emulator, far more than any test takes.
SMALL: dict[str, Any] = {"threads": 64, "blocks": 3, "timeout": 2e-2}
MAX_ROWS = 7  # a card pushes three rows at a time


@pytest.mark.parametrize(
    ("count", "hidden", "dtype", "norm"),
    [
        (2, 264, torch.bfloat16, True),  # two warps
        (3, 72, torch.float16, True),
        (3, 64, torch.bfloat16, False),
        (8, 72, torch.bfloat16, False),
    ],
)
def test_turns(count: int, hidden: int, dtype: torch.dtype, norm: bool) -> None:
    reduce = AllReduce(EmulatedCards(count), hidden, MAX_ROWS, dtype, norm=norm, **SMALL)
    for way in WAYS:
        check_turns(reduce, [way], 12)
    check_turns(reduce, WAYS, 24)


@pytest.mark.parametrize(
    ("count", "hidden", "dtype", "y_scales"),
    [
        (2, 72, torch.float16, RowScales("int8", 2**-5)),
        (2, 64, torch.bfloat16, RowScales(E4M3, 2**-7)),
        (3, 520, torch.bfloat16, RowScales("int8", 1e-30, per_row=True)),
        (8, 64, torch.float16, RowScales(E4M3, 1e-30, per_row=True)),
    ],
)
def test_normed_rows_of_bytes(count: int, hidden: int, dtype: torch.dtype, y_scales: RowScales) -> None:
    reduce = AllReduce(EmulatedCards(count), hidden, MAX_ROWS, dtype, norm=True, y_scales=y_scales, **SMALL)
    for way in WAYS:
        check_all_reduce(reduce, way, 5)


@pytest.mark.parametrize(("count", "part", "features"), [(2, 12, 24), (3, 400, 1197), (8, 4, 27)])
def test_all_gather(count: int, part: int, features: int) -> None:
    """The output has all features, an odd number of them (in several rounds), or none of the last rank's."""
    check_all_gather(AllGather(EmulatedCards(count), part, features, MAX_ROWS, **SMALL | {"threads": 32}), 12)


@pytest.mark.each_value
@pytest.mark.parametrize("tiles", [None, TileConfig(64, 48, 1, 1, 1, ""), TileConfig(64, 64, 1, 1, 2, "")], ids=str)
@pytest.mark.parametrize(("count", "dtype"), [(2, torch.bfloat16), (3, torch.float16)])
def test_products_store_rows_on_other_ranks(count: int, dtype: torch.dtype, tiles: TileConfig | None) -> None:
    capacity = 8 if tiles is None else 64
    check_stored_on_owners(EmulatedCards(count), Shape(104, 256, capacity, tiles, dtype), capacity - 3)
    for leaves in (0, 7):  # with 7, some rows begin at an odd element
        check_stored_logits(EmulatedCards(count), Shape(104, 256, capacity, tiles, dtype), capacity - 3, leaves)


@pytest.mark.parametrize("ways", [[PUSH], [PULL, PUSH]])
def test_a_rank_that_does_not_come_raises_the_alarm(ways: list[str]) -> None:
    small = SMALL | {"timeout": 1e-3}
    check_missing(AllReduce(EmulatedCards(3), 64, MAX_ROWS, torch.bfloat16, norm=False, **small), ways, 20)
