"""Kernels of int8 weights: odd sizes, every epilogue, poisoned outputs."""

import pytest
import torch

from tests.gpu.int8_checks import check_dequantize, check_gated_linear, check_linear
from tests.gpu.kernels import StreamConfig

BUCKETS = [(1, 1), (2, 2), (4, 3), (8, 7), (16, 9), (16, 16)]
SHAPES = [(96, 64), (49, 576), (1000, 1536), (6144, 4096), (528, 14336)]
CONFIGS = [
    StreamConfig(stage_k=2048),
    StreamConfig(stage_k=512),
    StreamConfig(stage_k=1024, tiles_per_stage=2, stream_x=True),
    StreamConfig(stage_k=256, tiles_per_stage=2, stream_x=True, shared_bytes=100 * 1024),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features"), SHAPES)
def test_linear(out: int, in_features: int, tokens: int, rows: int, dtype: torch.dtype) -> None:
    check_linear(out, in_features, tokens, rows, dtype)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 13)])
def test_every_configuration(config: StreamConfig, tokens: int, rows: int) -> None:
    check_linear(1000, 4096 + 16, tokens, rows, torch.bfloat16, bias=True, residual=True, config=config)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features"), [(48, 576), (1000, 2048), (14336, 4096)])
def test_gated_linear(out: int, in_features: int, tokens: int, rows: int, dtype: torch.dtype) -> None:
    check_gated_linear(out, in_features, tokens, rows, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "in_features"), [(1, 16), (49, 576), (1000, 4096)])
def test_dequantize(rows: int, in_features: int, dtype: torch.dtype) -> None:
    check_dequantize(rows, in_features, dtype)
