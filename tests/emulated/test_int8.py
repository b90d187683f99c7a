"""Kernels of int8 weights, without a GPU."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.int8_checks import check_dequantize, check_gated_linear, check_linear
from tests.gpu.kernels import StreamConfig

SMALL = 64 * 1024


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 9)])
def test_linear(tokens: int, rows: int, dtype: torch.dtype) -> None:
    config = StreamConfig(stage_k=128, shared_bytes=SMALL)
    check_linear(49, 208, tokens, rows, dtype, bias=True, residual=True, config=config, machine=Emulator())


def test_x_may_travel_with_the_weights() -> None:
    config = StreamConfig(stage_k=64, tiles_per_stage=2, stream_x=True, shared_bytes=SMALL)
    check_linear(96, 208, 4, 3, torch.bfloat16, config=config, machine=Emulator())


def test_gated_linear() -> None:
    check_gated_linear(24, 144, 2, 2, torch.bfloat16, machine=Emulator())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dequantize(dtype: torch.dtype) -> None:
    check_dequantize(5, 96, dtype, Emulator())
