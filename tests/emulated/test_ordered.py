"""Kernels that a deterministic engine may choose give a row the same bits, without a GPU.

The emulator adds the products of a tensor core's instruction in an order of its own; tests/gpu/test_ordered.py compares
cards.
"""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.ordered_checks import INT8, Case, Way, check_same_bits
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.few_rows import GemvConfig
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.tiles import TileConfig
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.launch import Device

BYTES = weight_form("int8", "int8")
GEMV = GemvConfig(128, 16, False, 16 * 1024, "", BYTES)
SMALL, MIDDLE = Device("sm_90a", 64 * 1024), Device("sm_90a", 96 * 1024)
FEW = [
    Way(GEMV, 1, device=SMALL),
    Way(GEMV, 4, device=SMALL),
    Way(SplitKConfig(128, 4, 2, 32 * 1024, "", BYTES), 8, blocks=2, device=MIDDLE),
    Way(SplitKConfig(128, 2, 4, 32 * 1024, "", BYTES), 16, blocks=4, device=MIDDLE),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "case",
    [
        Case(INT8, 104, 512, bias=True, added=True),
        Case(INT8, 104, 512, bias=True, activation="gelu_tanh", float_out=True),
        Case(INT8, 104, 512, activation="relu2"),
        Case(INT8, 104, 512, gated=True, activation="silu", added=True),
        Case(INT8, 4 * 64, 512, kv_heads=1, bias=True),
    ],
    ids=str,
)
def test_sums_of_int8_are_exact_in_any_order(case: Case, dtype: torch.dtype) -> None:
    tiles = [TileConfig(64, 64, 1, 1, 1, ""), TileConfig(128, 96, 1, 1, 1, "")]
    split = [] if case.gated else [TileConfig(64, 64, 1, 1, 2, "")]
    ways = [Way(config, 64) for config in (*tiles, *split)] + FEW
    check_same_bits(case, ways, 37, dtype, Emulator(num_sms=4))


@pytest.mark.parametrize(
    "form",
    [
        Form("int4", 64, "bfloat16", ordered=True),
        Form("uint4", 32, "float16", offsets=True, ordered=True),
        Form("float8_e4m3fn", 64, "bfloat16"),
        Form("float4_e2m1fn", 64, "float32"),
        Form("int8", 64, "bfloat16", offsets=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("splits", [1, 2])
def test_features_may_take_the_place_of_rows(form: Form, splits: int) -> None:
    ways = [
        Way(TileConfig(64, 48, 1, 1, splits, ""), 64),
        Way(TileConfig(128, 64, 1, 1, splits, ""), 128),
        Way(TileConfig(64, 128, 1, 1, splits, "", swap_ab=True), 64),
        Way(TileConfig(64, 64, 1, 1, splits, "", swap_ab=True), 16),
        Way(TileConfig(64, 64, 1, 1, splits, "", swap_ab=True), 1),
    ]
    check_same_bits(Case(form, 104, 1024, added=True), ways, 37, machine=Emulator(num_sms=4))
    if splits == 1:
        gated = Case(form, 72, 512, gated=True, activation="silu")
        check_same_bits(gated, [ways[1], ways[2], ways[3]], 37, machine=Emulator(num_sms=4))
        heads = Case(form, 4 * 64, 512, kv_heads=1, bias=True)
        check_same_bits(heads, [Way(TileConfig(64, 64, 1, 1, 1, ""), 64), *ways[2:]], 37, machine=Emulator(num_sms=4))
