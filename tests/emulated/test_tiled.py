"""Tiled products without a GPU: multicast boxes, dequantized weights, epilogues."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu import byte_checks, quantized_checks
from tests.gpu.kernels import ModelShape
from tests.gpu.qkv_checks import WeightKind, check_qkv
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.tiles import TileConfig

INT4 = Form("int4", 64, "bfloat16")


def _shape(heads: int, kv_heads: int, head_dim: int, hidden: int = 256, bias: bool = False) -> ModelShape:
    return ModelShape(hidden, 1024, heads, kv_heads, head_dim, 1000, page=32, qkv_bias=bias)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
def test_bytes(kind: torch.dtype) -> None:
    how = {"static": None, "residual": True, "machine": Emulator(num_sms=8)}
    byte_checks.check_tiled(kind, TileConfig(128, 64, 2, 1, 2, ""), 104, 512, 137, 256, torch.bfloat16, **how)
    how = {"static": 0.03125, "gated": True, "y_scale": 0.25, "machine": Emulator()}
    byte_checks.check_tiled(kind, TileConfig(64, 96, 1, 1, 1, ""), 104, 192, 37, 64, torch.float16, **how)


FORMS = [
    Form("int8"),
    INT4,
    Form("uint4", 32, "float16", offsets=True),
    Form("float8_e4m3fn", 64, "bfloat16"),
    Form("float4_e2m1fn", 64, "float32"),
    Form("int8", 64, "bfloat16", offsets=True),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_dequantized(form: Form) -> None:
    machine = Emulator(num_sms=4)
    config = TileConfig(64, 48, 1, 2, 1, "")
    quantized_checks.check_tiled(form, config, 104, 320, 37, 64, torch.float16, residual=True, machine=machine)
    config = TileConfig(64, 64, 1, 1, 1, "")
    quantized_checks.check_tiled(form, config, 40, 256, 64, 64, torch.bfloat16, gated=True, machine=machine)


@pytest.mark.parametrize("form", [form for form in FORMS if form.block], ids=str)
def test_swap_ab(form: Form) -> None:
    """Products of one and of two boxes of x, whose depth is not split or split, and a last stage that is not full."""
    config, how = TileConfig(64, 64, 1, 1, 2, "", swap_ab=True), {"residual": True, "machine": Emulator(num_sms=4)}
    for rows, capacity in ((37, 64), (20, 64), (9, 16)):
        quantized_checks.check_tiled(form, config, 104, 1024, rows, capacity, torch.bfloat16, **how)
    config = TileConfig(64, 128, 1, 1, 1, "", swap_ab=True)
    quantized_checks.check_tiled(form, config, 200, 320, 33, 64, torch.float16, gated=True, **how)
    quantized_checks.check_tiled(form, config, 136, 576, 64, 64, torch.bfloat16, machine=Emulator(num_sms=4, seed=3))


@pytest.mark.parametrize(("rows", "capacity"), [(1, 1), (5, 24)])
def test_rows_that_no_step_has_are_not_copied(rows: int, capacity: int) -> None:
    config, how = TileConfig(64, 48, 1, 4, 1, ""), {"static": None, "machine": Emulator(num_sms=8)}
    byte_checks.check_tiled(torch.int8, config, 104, 256, rows, capacity, torch.bfloat16, **how)
    config = TileConfig(64, 48, 1, 2, 1, "")
    quantized_checks.check_tiled(INT4, config, 104, 256, rows, capacity, torch.float16, machine=Emulator(num_sms=4))


@pytest.mark.parametrize("config", [TileConfig(64, 32, 1, 2, 4, ""), TileConfig(128, 80, 1, 1, 8, "")], ids=str)
def test_clusters_of_eight(config: TileConfig) -> None:
    """Blocks of the widest split have few steps each, or no columns at all."""
    how = {"residual": True, "machine": Emulator(num_sms=16)}
    quantized_checks.check_tiled(Form("bfloat16"), config, 104, 512, 37, config.rows, torch.bfloat16, **how)


@pytest.mark.parametrize("form", [Form("bfloat16"), INT4], ids=str)
def test_gated_rows_of_adapters_are_added_before_the_activation(form: Form) -> None:
    how = {"gated": True, "residual": True, "machine": Emulator(num_sms=4)}
    quantized_checks.check_tiled(form, TileConfig(64, 96, 1, 1, 1, ""), 104, 256, 37, 64, torch.bfloat16, **how)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("config", "heads", "kv_heads", "head_dim", "rows"),
    [
        (TileConfig(64, 48, 1, 1, 1, ""), 3, 1, 128, 37),  # chunks of 16 features: heads are no multiple of them
        (TileConfig(64, 112, 1, 2, 2, ""), 6, 1, 64, 64),  # slices of different size
        (TileConfig(128, 256, 2, 1, 1, ""), 4, 2, 128, 145),  # whole heads, of which each block asks for a half
        (TileConfig(64, 192, 1, 1, 1, ""), 3, 1, 128, 40),
        (TileConfig(64, 96, 1, 1, 4, ""), 4, 2, 64, 1),  # the last of four slices is empty
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_qkv(config: TileConfig, heads: int, kv_heads: int, head_dim: int, rows: int, dtype: torch.dtype) -> None:
    shape, capacity = _shape(heads, kv_heads, head_dim, bias=heads == 3), -(-rows // 64) * 64
    check_qkv(shape, config, rows, capacity, dtype, dtype, machine=Emulator(num_sms=4))


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 0), (96, 32), (128, 64)])
def test_qkv_of_a_part_of_each_head(head_dim: int, rotary_dim: int) -> None:
    config, dtype = TileConfig(64, 96, 1, 1, 1, ""), torch.bfloat16
    check_qkv(_shape(3, 1, head_dim), config, 19, 64, dtype, dtype, rotary_dim=rotary_dim, machine=Emulator())


@pytest.mark.parametrize("form", [form for form in FORMS if form.block], ids=str)
@pytest.mark.parametrize(
    ("cache_dtype", "plain_keys"),
    [(None, False), (torch.float8_e4m3fn, False), (torch.int8, True)],
    ids=["16 bits", "bytes", "values of bytes"],
)
def test_qkv_by_swap_ab(form: Form, cache_dtype: torch.dtype | None, plain_keys: bool) -> None:
    how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, "machine": Emulator(num_sms=4)}
    config = TileConfig(64, 128, 1, 1, 1, "", swap_ab=True)
    check_qkv(_shape(3, 1, 128, bias=True), config, 37, 64, torch.bfloat16, form, **how)
    config = TileConfig(64, 64, 1, 1, 2, "", swap_ab=True)
    check_qkv(_shape(4, 2, 64, hidden=1024), config, 20, 64, torch.float16, form, rotary_dim=32, **how)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8, Form("int8"), INT4, FORMS[3]], ids=str)
@pytest.mark.parametrize("plain_keys", [False, True])
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn, torch.int8], ids=str)
def test_qkv_of_other_weights(kind: WeightKind, cache_dtype: torch.dtype | None, plain_keys: bool) -> None:
    shape = _shape(4, 2, 64 if cache_dtype is None else 128, bias=cache_dtype is not None)
    how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, "machine": Emulator()}
    check_qkv(shape, TileConfig(64, 64, 1, 1, 1, ""), 37, 64, torch.bfloat16, kind, **how)
