"""Kernels of rows of bytes, without a GPU: products of a few rows, roundings and norms."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.byte_checks import check_quantize, check_rms_norm, check_streamed
from tests.gpu.memory import NAMES
from trtllm_lite.plugins.cuda.stream import StreamConfig
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.launch import Device

SMALL = Device("sm_90a", 64 * 1024)
KINDS = pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8], ids=NAMES.get)
STATIC = pytest.mark.parametrize("static", [0.03125, None])


@KINDS
@STATIC
@pytest.mark.parametrize(("tokens", "rows"), [(2, 1), (16, 9)])
def test_streamed(kind: torch.dtype, tokens: int, rows: int, static: float | None) -> None:
    config = StreamConfig(128, 1, False, 1, 16 * 1024, "", weight_form(NAMES[kind], NAMES[kind]))
    how = {"static": static, "config": config, "device": SMALL, "machine": Emulator()}
    check_streamed(kind, 56, 320, tokens, rows, torch.bfloat16, residual=True, **how)
    check_streamed(kind, 24, 192, tokens, rows, torch.float16, gated=True, norm=True, **how)


@KINDS
@STATIC
@pytest.mark.parametrize("splits", [1, 2])
def test_rows_may_be_rounded_before(kind: torch.dtype, static: float | None, splits: int) -> None:
    config = StreamConfig(128, 1, False, splits, 16 * 1024, "", weight_form(NAMES[kind], NAMES[kind]))
    how = {"static": static, "config": config, "device": SMALL, "machine": Emulator(num_sms=4), "before": True}
    check_streamed(kind, 56, 640, 8, 5, torch.bfloat16, residual=True, **how)
    check_streamed(kind, 24, 192, 16, 9, torch.bfloat16, gated=True, y_scale=0.25, **how)


@KINDS
@STATIC
@pytest.mark.parametrize("norm", [False, True])
def test_blocks_of_a_cluster_may_share_rows(kind: torch.dtype, static: float | None, norm: bool) -> None:
    """A scale of a row's largest element is the same in all of them."""
    config = StreamConfig(128, 1, False, 2, 16 * 1024, "", weight_form(NAMES[kind], NAMES[kind]))
    how = {"static": static, "config": config, "device": SMALL, "machine": Emulator(num_sms=4), "norm": norm}
    check_streamed(kind, 56, 640, 8, 5, torch.bfloat16, **how)


@KINDS
@STATIC
def test_quantize_rows(kind: torch.dtype, static: float | None) -> None:
    check_quantize(kind, 1032, 5, torch.bfloat16, static, Emulator())


@KINDS
@STATIC
def test_rms_norm(kind: torch.dtype, static: float | None) -> None:
    check_rms_norm(kind, 576, 3, torch.float16, static, residual=True, machine=Emulator())
