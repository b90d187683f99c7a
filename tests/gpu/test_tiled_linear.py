"""Tiled matrix products against float64: every cluster and epilogue, odd sizes, poisoned outputs, garbage rows."""

from itertools import pairwise

import pytest
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Kernel
from tests.gpu.launches import H200
from tests.gpu.tiled import prepare
from trtllm_lite.plugins.cuda.clusters import RESIDENT
from trtllm_lite.plugins.cuda.tiles import TileConfig, tile_configs
from trtllm_lite.plugins.cuda.weight_form import weight_form

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="the kernel is for sm_90a"
)

# (out_features, in_features, gated)
PRODUCTS = [(6144, 4096, False), (4096, 14336, False), (2048, 2048, False), (14336, 4096, True), (1096, 896, True)]
ROWS = [1, 3, 17, 64, 65, 129, 200, 513]
CONFIGS = [
    TileConfig(rows, columns, *blocks, "")
    for rows, columns in ((64, 96), (128, 256), (192, 160))
    for blocks in (
        *((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (1, 1, 4)),
        *((1, 2, 4), (1, 1, 8)),
    )
    if columns % (16 * blocks[0]) == 0
]


def _randn(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def _garbage(rows: int, capacity: int, features: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows, and NaN in the rest of the buffer."""
    x = torch.full((capacity, features), float("nan"), device="cuda", dtype=dtype)
    x[:rows] = _randn(rows, features, dtype=dtype)
    return x


def _check(config: TileConfig, rows: int, capacity: int, weight: torch.Tensor) -> None:
    """Check the product of ``rows`` rows in a buffer for ``capacity``; nothing else may be written."""
    x = _garbage(rows, capacity, weight.shape[-1], weight.dtype)
    y = torch.full((capacity, weight.shape[-2]), POISON, device="cuda", dtype=weight.dtype)
    prepare(config, rows, y, x, weight)()
    wide = x[:rows].double()
    if weight.dim() == 3:
        expected = torch.nn.functional.silu(wide @ weight[0].double().T) * (wide @ weight[1].double().T)
    else:
        expected = wide @ weight.double().T
    assert_close(y[:rows], expected)
    assert y[rows:].isnan().all()


@pytest.mark.parametrize("config", [TileConfig(64, 256, 1, 1, splits, "") for splits in (2, 4, 8)], ids=str)
def test_cards_hold_the_clusters_that_the_heuristic_counts_on(config: TileConfig) -> None:
    weight, x = _randn(2048, 4096, dtype=torch.bfloat16), _randn(64, 4096, dtype=torch.bfloat16)
    kernel = prepare(config, 64, torch.empty(64, 2048, device="cuda", dtype=torch.bfloat16), x, weight).kernel
    assert isinstance(kernel, Kernel)
    assert kernel.resident_clusters(config.cluster) * config.cluster >= RESIDENT[config.cluster]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("out", "in_features", "gated"), PRODUCTS)
def test_every_candidate(out: int, in_features: int, gated: bool, rows: int) -> None:
    shape = (2, out, in_features) if gated else (out, in_features)
    weight = _randn(*shape, dtype=torch.bfloat16, scale=in_features**-0.5)
    capacity = max(64, -(-rows // 128) * 128)
    configs = tile_configs(out, in_features, weight_form("bfloat16"), capacity, gated, H200)
    assert configs
    for config in configs:
        _check(config, rows, capacity, weight)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_cluster(config: TileConfig, gated: bool) -> None:
    if gated and config.splits > 1:
        pytest.skip("gated products are not split")
    shape = (2, 1096, 1536) if gated else (2056, 1536)
    weight = _randn(*shape, dtype=torch.float16, scale=0.03)
    for rows, capacity in ((1, 1), (5, 24), (5, 384), (300, 384)):
        _check(config, rows, capacity, weight)


@pytest.mark.parametrize("config", [TileConfig(64, 96, 1, 1, 1, ""), TileConfig(128, 128, 2, 1, 2, "")], ids=str)
def test_bias_residual_and_float_output(config: TileConfig) -> None:
    x, weight = _randn(70, 896, dtype=torch.bfloat16), _randn(520, 896, dtype=torch.bfloat16, scale=0.03)
    bias, residual = _randn(520, dtype=torch.float32), _randn(70, 520, dtype=torch.bfloat16)
    expected = x.double() @ weight.double().T + bias.double()
    wide = torch.full((70, 520), POISON, device="cuda")
    prepare(config, 70, wide, x, weight, bias)()
    assert_close(wide, expected)
    y = torch.full((70, 520), POISON, device="cuda", dtype=torch.bfloat16)
    prepare(config, 70, y, x, weight, bias, residual)()
    assert_close(y, expected + residual.double())


@pytest.mark.parametrize("config", [TileConfig(64, 96, 1, 1, 1, ""), TileConfig(128, 256, 1, 1, 4, "")], ids=str)
def test_residual_may_be_updated_in_place(config: TileConfig) -> None:
    x, weight = _randn(130, 1536, dtype=torch.bfloat16), _randn(576, 1536, dtype=torch.bfloat16, scale=0.03)
    y = _randn(130, 576, dtype=torch.bfloat16)
    expected = x.double() @ weight.double().T + y.double()
    prepare(config, 130, y, x, weight, residual=y)()
    assert_close(y, expected)


@pytest.mark.parametrize("gated", [False, True])
def test_a_chain_that_overlaps_gives_what_launches_apart_give(gated: bool) -> None:
    """Programmatic launches read the previous product's rows only after it has ended."""
    shape = (2, 2048, 2048) if gated else (2048, 2048)
    weight = _randn(*shape, dtype=torch.bfloat16, scale=0.05)
    buffers = [_randn(256, 2048, dtype=torch.bfloat16)] + [
        torch.full((256, 2048), POISON, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    ]
    config = tile_configs(2048, 2048, weight_form("bfloat16"), 256, gated, H200)[0]
    steps = [prepare(config, 256, y, x, weight) for x, y in pairwise(buffers)]
    results = []
    for programmatic in (False, True):
        for buffer in buffers[1:]:
            buffer.fill_(POISON)
        torch.cuda.synchronize()
        for step in steps:
            step(programmatic=programmatic)
        results.append([buffer.clone() for buffer in buffers[1:]])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert torch.isfinite(results[0][-1]).all()
