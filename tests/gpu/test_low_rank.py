"""The LoRA kernels at the sizes of real models, and their simultaneous launches."""

import pytest
import torch

from tests.gpu.device import GPU
from tests.gpu.low_rank_checks import Problem, check_low_rank

PRODUCTS = {
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
    "odd": (1032, (72, 8)),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_mixed_batches(rows: int, product: str, dtype: torch.dtype, residual: bool) -> None:
    in_features, widths = PRODUCTS[product]
    ranks = [[16 - slot % 5 * 3] * len(widths) for slot in range(16)]
    adapters = [(row * 7 + 3) % 17 - 1 for row in range(rows)]
    check_low_rank(Problem(in_features, widths, 16, ranks, adapters), dtype, GPU, residual=residual)


@pytest.mark.parametrize("product", ["qkv", "down"])
@pytest.mark.parametrize("rows", [300, 2048])
def test_prompts(rows: int, product: str) -> None:
    in_features, widths = PRODUCTS[product]
    ranks = [[64] * len(widths), [9] * len(widths)]
    adapters = [0] * (rows - 40) + [-1] * 20 + [1] * 20
    check_low_rank(Problem(in_features, widths, 64, ranks, adapters), torch.bfloat16, GPU, residual=True)
