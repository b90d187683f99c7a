"""Kernels for rows stored as bytes, without a GPU: GEMV, roundings and norms."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.byte_checks import check_few_rows, check_quantize, check_rms_norm
from tests.gpu.memory import NAMES
from trtllm_lite.plugins.cuda.few_rows import GemvConfig
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.launch import Device

SMALL = Device("sm_90a", 64 * 1024)
KINDS = pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8], ids=NAMES.get)
STATIC = pytest.mark.parametrize("static", [0.03125, None])


@KINDS
@STATIC
@pytest.mark.parametrize(("tokens", "rows"), [(2, 1), (16, 9)])
def test_few_rows(kind: torch.dtype, tokens: int, rows: int, static: float | None) -> None:
    config = GemvConfig(128, 16, False, 16 * 1024, "", weight_form(NAMES[kind], NAMES[kind]))
    how = {"static": static, "config": config, "device": SMALL, "machine": Emulator()}
    check_few_rows(kind, 56, 320, tokens, rows, torch.bfloat16, residual=True, **how)
    check_few_rows(kind, 24, 192, tokens, rows, torch.float16, gated=True, norm=True, **how)


@KINDS
@STATIC
@pytest.mark.parametrize(
    ("splits", "tiles", "tokens", "rows", "norm"),
    [(2, 4, 8, 8, False), (2, 3, 16, 9, True), (4, 2, 16, 16, True), (4, 4, 4, 1, False), (4, 3, 4, 3, False)],
)
def test_blocks_of_a_cluster_may_share_rows(
    kind: torch.dtype, splits: int, tiles: int, tokens: int, rows: int, norm: bool, static: float | None
) -> None:
    """All blocks of a cluster get one scale for a row's largest element; the cluster has several groups of tiles."""
    config = SplitKConfig(128, tiles, splits, 32 * 1024, "", weight_form(NAMES[kind], NAMES[kind]))
    machine = Emulator(num_sms=splits, seed=tokens + rows)
    how = {"config": config, "device": Device("sm_90a", 96 * 1024), "machine": machine, "blocks": splits}
    check_few_rows(kind, 328, 640, tokens, rows, torch.bfloat16, static=static, norm=norm, residual=True, **how)


@KINDS
def test_blocks_of_a_cluster_may_write_bytes(kind: torch.dtype) -> None:
    config = SplitKConfig(128, 4, 2, 32 * 1024, "", weight_form(NAMES[kind], NAMES[kind]))
    how = {"config": config, "device": Device("sm_90a", 96 * 1024), "machine": Emulator(num_sms=4), "norm": True}
    check_few_rows(kind, 24, 320, 8, 5, torch.float16, static=0.03125, gated=True, y_scale=0.25, **how)


@KINDS
@STATIC
def test_quantize_rows(kind: torch.dtype, static: float | None) -> None:
    check_quantize(kind, 1032, 5, torch.bfloat16, static, Emulator())


@KINDS
@STATIC
def test_rms_norm(kind: torch.dtype, static: float | None) -> None:
    check_rms_norm(kind, 576, 3, torch.float16, static, residual=True, machine=Emulator())
