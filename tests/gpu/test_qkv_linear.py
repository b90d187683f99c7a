"""Queries, keys and values: products, rotation, and the write into the paged cache."""

import pytest
import torch

from tests.gpu.attention_checks import check_qkv_linear
from tests.gpu.kernels import LLAMA_8B, ModelShape

SMOL = ModelShape(576, 1536, 9, 3, 64, 1000, page=32)
BIASED = ModelShape(896, 4864, 14, 2, 64, 1000, page=64, qkv_bias=True)
WIDE = ModelShape(512, 1024, 4, 1, 80, 1000, page=32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (4, 3), (8, 8), (16, 13)])
@pytest.mark.parametrize("shape", [SMOL, BIASED, WIDE, LLAMA_8B], ids=["smol", "biased", "wide", "llama_8b"])
def test_qkv_linear(shape: ModelShape, tokens: int, rows: int, dtype: torch.dtype) -> None:
    check_qkv_linear(shape, tokens, rows, dtype)
