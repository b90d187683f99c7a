"""Kernels for 8-bit rows: odd sizes, every epilogue, one scale or one per row, poisoned outputs."""

import pytest
import torch

from tests.gpu.byte_checks import check_few_rows, check_quantize, check_rms_norm, check_tiled
from tests.gpu.launches import H200
from tests.gpu.memory import NAMES
from trtllm_lite.plugins.cuda.tiles import TileConfig, tile_configs
from trtllm_lite.plugins.cuda.weight_form import weight_form

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="the kernels are for sm_90a"
)
BUCKETS = [(1, 1), (2, 2), (4, 3), (8, 7), (16, 9), (16, 16)]
STATIC = [0.03125, None]
KINDS = pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8], ids=NAMES.get)


@KINDS
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features"), [(96, 64), (56, 576), (1000, 1536), (6144, 4096)])
def test_few_rows(
    kind: torch.dtype,
    out: int,
    in_features: int,
    tokens: int,
    rows: int,
    dtype: torch.dtype,
    static: float | None,
) -> None:
    check_few_rows(kind, out, in_features, tokens, rows, dtype, static=static, norm=True)
    check_few_rows(kind, out, in_features, tokens, rows, dtype, static=static, residual=True)


@KINDS
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (8, 7), (16, 13)])
def test_few_rows_deep_rows(kind: torch.dtype, tokens: int, rows: int, static: float | None) -> None:
    """The blocks of a cluster share a row."""
    check_few_rows(kind, 4096, 14336, tokens, rows, torch.bfloat16, static=static, residual=True)
    check_few_rows(kind, 520, 28672, tokens, rows, torch.float16, static=static)


@KINDS
@pytest.mark.parametrize("y_scale", [None, 0.1])
def test_few_rows_gated_bytes(kind: torch.dtype, y_scale: float | None) -> None:
    check_few_rows(kind, 14336, 4096, 16, 13, torch.bfloat16, static=0.03125, gated=True, y_scale=y_scale)


@KINDS
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features"), [(48, 576), (14336, 4096)])
def test_few_rows_gated(
    kind: torch.dtype,
    out: int,
    in_features: int,
    tokens: int,
    rows: int,
    static: float | None,
) -> None:
    check_few_rows(kind, out, in_features, tokens, rows, torch.bfloat16, static=static, gated=True, norm=True)


@KINDS
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "capacity"), [(1, 64), (37, 64), (130, 256), (1000, 1024)])
@pytest.mark.parametrize(("out", "in_features"), [(64, 96), (128, 64), (264, 576), (1536, 4096)])
def test_tiled(
    kind: torch.dtype,
    out: int,
    in_features: int,
    rows: int,
    capacity: int,
    dtype: torch.dtype,
    static: float | None,
) -> None:
    for config in tile_configs(out, in_features, weight_form(NAMES[kind], NAMES[kind]), capacity, False, H200)[:3]:
        check_tiled(kind, config, out, in_features, rows, capacity, dtype, static=static, residual=True)


@KINDS
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_tiled_parts_of_the_depth(kind: torch.dtype, splits: int) -> None:
    config = TileConfig(128, 128, 1, 1, splits, "")
    check_tiled(kind, config, 512, 14336, 100, 128, torch.bfloat16, static=0.03125)


@KINDS
@pytest.mark.parametrize("y_scale", [None, 0.0625])
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize(("rows", "capacity"), [(1, 64), (130, 256), (1000, 1024)])
@pytest.mark.parametrize(("out", "in_features"), [(96, 64), (200, 576), (14336, 4096)])
def test_tiled_gated(
    kind: torch.dtype,
    out: int,
    in_features: int,
    rows: int,
    capacity: int,
    static: float | None,
    y_scale: float | None,
) -> None:
    for config in tile_configs(out, in_features, weight_form(NAMES[kind], NAMES[kind]), capacity, True, H200)[:2]:
        check_tiled(
            kind, config, out, in_features, rows, capacity, torch.bfloat16, static=static, gated=True, y_scale=y_scale
        )


@KINDS
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("features", "rows"), [(8, 1), (576, 17), (4096, 300), (14336, 33)])
def test_quantize_rows(kind: torch.dtype, features: int, rows: int, dtype: torch.dtype, static: float | None) -> None:
    check_quantize(kind, features, rows, dtype, static)


@KINDS
@pytest.mark.parametrize("static", STATIC)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("hidden", "rows"), [(64, 3), (576, 17), (4096, 300)])
def test_rms_norm(kind: torch.dtype, hidden: int, rows: int, residual: bool, static: float | None) -> None:
    check_rms_norm(kind, hidden, rows, torch.bfloat16, static, residual=residual)
