"""Kernels that a deterministic engine may choose give a row the same bits: odd sizes, poisoned outputs, epilogues."""

import pytest
import torch

from tests.gpu.launches import H200
from tests.gpu.ordered_checks import INT8, Case, Way, check_same_bits
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.few_rows import few_rows_config
from trtllm_lite.plugins.cuda.tiles import TileConfig
from trtllm_lite.plugins.cuda.weight_form import weight_form

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="the kernels are for sm_90a"
)
BYTES = weight_form("int8", "int8")
BUCKETS = (1, 2, 4, 8, 16)
FORMS = (
    Form("int4", 128, "float16", ordered=True),
    Form("uint4", 64, "bfloat16", offsets=True, zero_points=True, ordered=True),
    Form("float8_e4m3fn", 128, "bfloat16"),
    Form("float4_e2m1fn", 32, "float32"),
    Form("int8", 128, "float16", offsets=True),
)


def _few(case: Case) -> list[Way]:
    """The kernels of up to 16 rows."""
    shape = (*((2,) if case.gated else ()), case.out, case.in_features)
    configs = {tokens: few_rows_config(shape, BYTES, tokens, H200) for tokens in BUCKETS}
    return [Way(config, tokens) for tokens, config in configs.items() if config is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "case",
    [
        Case(INT8, 1000, 1536, bias=True, added=True),
        Case(INT8, 1000, 1536, bias=True, activation="gelu_tanh", float_out=True),
        Case(INT8, 520, 14336, added=True),
        Case(INT8, 1048, 4096, gated=True, activation="silu", added=True),
        Case(INT8, 1048, 1536, gated=True, activation="gelu"),
        Case(INT8, 28 * 64, 4096, kv_heads=4, bias=True),
    ],
    ids=str,
)
def test_sums_of_int8_are_exact_in_any_order(case: Case, dtype: torch.dtype) -> None:
    few = _few(case)
    assert len(few) == len(BUCKETS)
    assert {way.config.splits for way in few} > {1}, "one kernel has no split-K"
    tiles = [TileConfig(64, 96, 1, 1, 1, ""), TileConfig(128, 192, 2, 1, 1, "")]
    split = [] if case.gated else [TileConfig(64, 64, 1, 1, 4, ""), TileConfig(128, 128, 1, 1, 2, "")]
    check_same_bits(case, [Way(config, 256) for config in (*tiles, *split)] + few, 203, dtype)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("in_features", "splits"), [(4096, 1), (4096, 2), (14336, 4)])
def test_features_may_take_the_place_of_rows(form: Form, in_features: int, splits: int) -> None:
    """Each narrow product of swap-AB adds what tiles add, along the depths of a model of 8B."""
    swap_ab = TileConfig(64, 64, 1, 1, splits, "", swap_ab=True)
    ways = [Way(TileConfig(64, 80, 1, 1, splits, ""), 64), Way(TileConfig(128, 128, 1, 1, splits, ""), 256)]
    ways += [Way(swap_ab, capacity) for capacity in (1, 8, 16, 32, 64)]
    check_same_bits(Case(form, 520, in_features, added=True), ways, 61)
    check_same_bits(Case(form, 520, in_features, float_out=True), ways, 64)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_epilogues_of_swap_ab(form: Form, dtype: torch.dtype) -> None:
    for case in (
        Case(form, 1048, 1536, gated=True, activation="silu", added=True),
        Case(form, 12 * 64, 1536, kv_heads=2, bias=True),
    ):
        ways = [Way(TileConfig(64, 128, 1, 1, 1, ""), 64), Way(TileConfig(128, 64, 1, 1, 1, ""), 128)]
        ways += [Way(TileConfig(64, 128, 1, 1, 1, "", swap_ab=True), capacity) for capacity in (8, 16, 64)]
        check_same_bits(case, ways, 37, dtype)
