"""Configurations of GEMV kernels: they satisfy what the kernels assert, and place rows of x in the right memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.plugins.cuda.few_rows import FewRows, few_rows_config
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form
from trtllm_lite.plugins.launch import Buffer, Device, WeightBuffers

H200, RTX = Device("sm_90a", 227 * 1024), Device("sm_89", 99 * 1024)
PLAIN, FP8 = weight_form("bfloat16"), weight_form("float8_e4m3fn", "float8_e4m3fn")
INT4 = weight_form("int4", blocks=BlockNumbers(128, "float16", offsets=False))
FORMS = [
    PLAIN,
    FP8,
    INT4,
    weight_form("int8"),
    *(weight_form("uint4", blocks=BlockNumbers(size, "float32", offsets=True)) for size in (32, 128, 512)),
    weight_form("float8_e4m3fn", blocks=BlockNumbers(128, "float32", offsets=False)),
    weight_form("float4_e2m1fn", blocks=BlockNumbers(32, "bfloat16", offsets=False)),
]


@given(
    st.sampled_from(FORMS),
    st.sampled_from([H200, RTX]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 2000).map(lambda n: 8 * n),
    st.integers(1, 900).map(lambda n: 32 * n),
)
def test_what_kernels_assert_holds(form: WeightForm, device: Device, tokens: int, out: int, in_features: int) -> None:
    config = few_rows_config((out, in_features), form, tokens, device)
    if config is None:
        return
    depth = form.depth if form.blocks is None else max(form.depth, form.blocks.size)
    assert in_features % (config.splits * depth) == 0
    assert config.stage_k % depth == 0
    stage = config.stage_bytes() if isinstance(config, SplitKConfig) else config.stage_bytes(tokens)
    stages = config.ring_bytes(in_features, tokens, device.shared_bytes) // stage
    assert stages >= 2
    assert config.splits == 1 or device == H200
    assert config.consumer_warps % config.teams == 0
    assert config.teams == 1 or (stages > config.teams and in_features <= config.stage_k and not config.stream_x)
    assert config.splits > 1 or config.stage_rows // 2 * tokens <= 32 * config.consumer_warps // config.teams


@pytest.mark.parametrize(
    ("form", "in_features", "tokens", "device", "splits", "travels"),
    [
        (FP8, 4096, 2, H200, 1, False),
        (FP8, 4096, 4, H200, 4, False),
        (FP8, 2048, 4, H200, 4, False),
        (FP8, 14336, 16, RTX, None, None),
        (INT4, 2048, 16, H200, 2, False),
        (INT4, 14336, 16, H200, 8, False),
        (PLAIN, 14336, 4, H200, 1, False),
        (PLAIN, 14336, 16, H200, 8, False),
        (PLAIN, 28672, 16, H200, 8, False),
        (PLAIN, 57344, 16, H200, 1, True),
        (PLAIN, 4096, 16, RTX, 1, True),
    ],
)
def test_rows_are_shared_stay_or_travel(
    form: WeightForm, in_features: int, tokens: int, device: Device, splits: int | None, travels: bool | None
) -> None:
    config = few_rows_config((4096, in_features), form, tokens, device)
    assert (config and config.splits, config and config.stream_x) == (splits, travels)


def test_the_busiest_block_decides_how_many_splits() -> None:
    """There are 64 groups of four tiles: clusters of four need three rounds, each over a quarter of the depth, and
    clusters of eight need five rounds over an eighth. A round's fixed cost counts more if rows are short."""
    short, long = (few_rows_config((4096, in_features), FP8, 16, H200) for in_features in (4096, 14336))
    assert short is not None
    assert long is not None
    assert (short.splits, short.stage_rows) == (4, 64)
    assert (long.splits, long.stage_rows) == (8, 64)


def test_clusters_are_whole() -> None:
    """Clusters of four use 120 of 132 SMs."""
    config = few_rows_config((28672, 4096), FP8, 16, H200)
    assert config is not None
    assert config.splits == 4
    weight = WeightBuffers(Buffer("weight", "float8_e4m3fn", (28672, 4096)), Buffer("scale", "float32", (28672,)))
    (grid,) = FewRows(16, "bfloat16", H200, config).grid(weight)
    assert sum(-(-132 * multiplier // divisor) for _, multiplier, divisor in grid.terms) == 120
