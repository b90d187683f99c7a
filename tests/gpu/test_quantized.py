"""Kernels for 8-bit and 4-bit weights: odd sizes, every epilogue, blocks with scales and offsets, poisoned outputs."""

import pytest
import torch

from tests.gpu.launches import H200
from tests.gpu.quantized_checks import check_codes, check_dequantize, check_few_rows, check_tiled
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.tiles import TILED_ARCH, TileConfig, tile_configs
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form

INT8 = Form("int8")
FORMS = {
    "int8": INT8,
    "int4": Form("int4", 128),
    "awq": Form("uint4", 128, "float16", offsets=True, zero_points=True),
    "gguf": Form("uint4", 32, "float32", offsets=True),
    "short": Form("int4", 64, "bfloat16"),
    "long": Form("int4", 512, "float16", offsets=True),
    "fp8": Form("float8_e4m3fn", 128),
    "fp8 rows": Form("float8_e4m3fn", 512, "bfloat16"),
    "mxfp4": Form("float4_e2m1fn", 32, "bfloat16"),
    "q8_0": Form("int8", 32, "float16"),
    "q5_1": Form("int8", 32, "float32", offsets=True),
}
BUCKETS = [(1, 1), (2, 2), (4, 3), (8, 7), (16, 9), (16, 16)]
SMALL_BLOCKS = ["int8", "gguf", "short", "mxfp4"]
sm_90a = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason=f"tiles are for {TILED_ARCH}"
)


def kernel_form(form: Form) -> WeightForm:
    return weight_form(form.dtype, blocks=BlockNumbers(form.block, form.number, form.offsets) if form.block else None)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_few_rows(name: str, tokens: int, rows: int, dtype: torch.dtype) -> None:
    form = FORMS[name]
    check_few_rows(form, 1000, 1536, tokens, rows, dtype, norm=True, bias=True)
    check_few_rows(form, 6144, 4096, tokens, rows, dtype, residual=True)
    check_few_rows(form, 528, 14336, tokens, rows, dtype)


@pytest.mark.parametrize("name", SMALL_BLOCKS)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 13)])
def test_few_rows_small(name: str, tokens: int, rows: int) -> None:
    check_few_rows(FORMS[name], 96, 64, tokens, rows, torch.bfloat16)
    check_few_rows(FORMS[name], 200, 576, tokens, rows, torch.float16, norm=True, bias=True, residual=True)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
def test_few_rows_gated(name: str, tokens: int, rows: int) -> None:
    check_few_rows(FORMS[name], 1000, 2048, tokens, rows, torch.bfloat16, gated=True, norm=True)
    check_few_rows(FORMS[name], 14336, 4096, tokens, rows, torch.bfloat16, gated=True)


@sm_90a
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("rows", "capacity"), [(1, 64), (37, 64), (130, 256), (1000, 1024)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiled(name: str, rows: int, capacity: int, dtype: torch.dtype) -> None:
    form = FORMS[name]
    for out, in_features in ((264, 1536), (4096, 4096)):
        for config in tile_configs(out, in_features, kernel_form(form), capacity, False, H200)[:3]:
            check_tiled(form, config, out, in_features, rows, capacity, dtype, residual=True)


@sm_90a
@pytest.mark.parametrize("name", SMALL_BLOCKS)
def test_tiled_small(name: str) -> None:
    for out, in_features in ((64, 64), (200, 576)):
        for config in tile_configs(out, in_features, kernel_form(FORMS[name]), 128, False, H200)[:3]:
            check_tiled(FORMS[name], config, out, in_features, 100, 128, torch.bfloat16, residual=True)


@sm_90a
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("row_blocks", "column_blocks", "splits"), [(1, 1, 2), (1, 1, 4), (2, 1, 2), (1, 2, 2), (2, 2, 1)]
)
def test_tiled_clusters(name: str, row_blocks: int, column_blocks: int, splits: int) -> None:
    config = TileConfig(128, 128, row_blocks, column_blocks, splits, "")
    check_tiled(FORMS[name], config, 520, 14336, 200, 256, torch.bfloat16)


@sm_90a
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("rows", "capacity"), [(1, 64), (130, 256), (1000, 1024)])
def test_tiled_gated(name: str, rows: int, capacity: int) -> None:
    form = FORMS[name]
    for out, in_features in ((200, 1536), (14336, 4096)):
        for config in tile_configs(out, in_features, kernel_form(form), capacity, True, H200)[:2]:
            check_tiled(form, config, out, in_features, rows, capacity, torch.bfloat16, gated=True)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_code_is_converted_exactly(name: str, dtype: torch.dtype) -> None:
    check_codes(name, dtype)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dequantize(name: str, dtype: torch.dtype) -> None:
    for rows, in_features in ((8, 512), (1000, 4096)):
        check_dequantize(FORMS[name], rows, in_features, dtype)
