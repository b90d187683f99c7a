"""LoRA kernels without a GPU: ranks, parts, rows with and without an adapter."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.low_rank_checks import Problem, check_low_rank

MIXED = [1, -1, 0, 1, 1, -1, 2, 0, *[1] * 20, -1]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, (64, 32, 32), 8, [(5, 0, 8), (8, 8, 8), (0, 0, 0)], MIXED),
        Problem(200, (136,), 16, [(16,), (3,), (0,)], MIXED),
        Problem(1032, (72, 8), 24, [(24, 1), (9, 16), (8, 0)], MIXED),
        Problem(576, (200, 200), 64, [(33, 64), (16, 0), (64, 7)], [2, 0, 1]),
    ],
    ids=["qkv", "one_part", "odd_sizes", "large_ranks"],
)
def test_low_rank(problem: Problem, dtype: torch.dtype, residual: bool, arch: str) -> None:
    check_low_rank(problem, dtype, Emulator(arch), residual=residual)


def test_rows_of_one_adapter_alone_and_of_none() -> None:
    for adapters in ([0] * 70, [-1] * 3, [-1]):
        check_low_rank(Problem(72, (40,), 8, [(8,)], adapters), torch.bfloat16, Emulator(), residual=True)


@pytest.mark.parametrize("ranks", [[(16, 5), (0, 9)], [(40, 64), (17, 0)]])
def test_warps_of_several_units(ranks: list[tuple[int, int]]) -> None:
    max_rank = 16 if ranks[0][0] <= 16 else 64
    problem = Problem(64, (8200, 520), max_rank, ranks, [1, 0, -1])
    check_low_rank(problem, torch.bfloat16, Emulator(), residual=True)


def test_deep_products_are_split() -> None:
    check_low_rank(Problem(8208, (48,), 16, [(16,), (11,)], [1, 0, 1]), torch.float16, Emulator(), residual=False)
