"""AllReduce and AllGather on several GPUs, without an engine."""

import pytest
import torch

from tests.gpu.cards import Gpus
from tests.gpu.collective_checks import check_all_gather, check_all_reduce, check_missing, check_turns
from tests.gpu.collectives import OWNED, PULL, PUSH, STORED, AllGather, AllReduce
from tests.gpu.peer_rows import Shape, check_stored_logits, check_stored_on_owners
from trtllm_lite.plugins.cuda.row_scales import E4M3, RowScales
from trtllm_lite.plugins.cuda.tiles import TileConfig

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
WAYS = [PUSH, PULL, OWNED, STORED]
Y_SCALES = [
    RowScales("int8", 2**-5),
    RowScales(E4M3, 2**-7),
    RowScales("int8", 1e-30, per_row=True),
    RowScales(E4M3, 1e-30, per_row=True),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [64, 4096, 4104])
@pytest.mark.parametrize("norm", [False, True])
def test_all_reduce(hidden: int, norm: bool, dtype: torch.dtype) -> None:
    reduce = AllReduce(Gpus(), hidden, 700, dtype, norm=norm)
    for rows in (1, 3, 8, 127, 129, 700):
        for way in (PULL, OWNED, STORED):
            check_all_reduce(reduce, way, rows)
    # Each row of an inbox has its own turn number, and grids differ.
    for rows in [1, 2, reduce.inbox_rows, 1, 1, 1]:
        check_all_reduce(reduce, PUSH, rows)


@pytest.mark.parametrize("y_scales", Y_SCALES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_normed_rows_of_bytes(way: str, y_scales: RowScales) -> None:
    reduce = AllReduce(Gpus(), 4104, 60, torch.bfloat16, norm=True, y_scales=y_scales)
    check_all_reduce(reduce, way, 60)


@pytest.mark.parametrize("ways", [[PUSH], WAYS], ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_turns(norm: bool, ways: list[str]) -> None:
    check_turns(AllReduce(Gpus(), 256, 64, torch.bfloat16, norm=norm), ways, 50)


@pytest.mark.parametrize(("part", "leaves"), [(64, 0), (16036, 7)])
def test_all_gather(part: int, leaves: int) -> None:
    cards = Gpus()
    check_all_gather(AllGather(cards, part, cards.count * part - leaves, 8), 50)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("capacity", "tiles"),
    [(1, None), (16, None), (64, TileConfig(64, 256, 1, 1, 2, "")), (1000, TileConfig(128, 224, 2, 1, 1, ""))],
    ids=str,
)
def test_products_store_rows_on_other_ranks(capacity: int, tiles: TileConfig | None, dtype: torch.dtype) -> None:
    cards = Gpus()
    for rows in {1, capacity - capacity // 3, capacity}:
        shape = Shape(4104, 2048, capacity, tiles, dtype)
        check_stored_on_owners(cards, shape, rows)
        check_stored_logits(cards, shape, rows)
        check_stored_logits(cards, shape, rows, leaves=7)


def test_a_rank_that_does_not_come_raises_the_alarm() -> None:
    reduce = AllReduce(Gpus(), 256, 64, torch.bfloat16, norm=False, timeout=0.2)
    check_missing(reduce, [PUSH, PULL], 200)
