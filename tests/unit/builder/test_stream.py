"""Configurations of streaming products: that they satisfy what the kernels assert, and where rows of x lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.plugins.cuda.stream import Streaming, stream_config
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form
from trtllm_lite.plugins.launch import Buffer, Device, WeightBuffers

H200, RTX = Device("sm_90a", 227 * 1024), Device("sm_89", 99 * 1024)
PLAIN, FP8 = weight_form("bfloat16"), weight_form("float8_e4m3fn", "float8_e4m3fn")
FORMS = [
    PLAIN,
    FP8,
    weight_form("int8"),
    *(weight_form("uint4", blocks=BlockNumbers(size, "float32", offsets=True)) for size in (32, 128, 512)),
]


@given(
    st.sampled_from(FORMS),
    st.sampled_from([H200, RTX]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 2000).map(lambda n: 8 * n),
    st.integers(1, 900).map(lambda n: 32 * n),
)
def test_what_kernels_assert_holds(form: WeightForm, device: Device, tokens: int, out: int, in_features: int) -> None:
    config = stream_config(out, in_features, form, tokens, device)
    if config is None:
        return
    depth = form.depth if form.blocks is None else max(form.depth, form.blocks.size)
    assert in_features % (config.splits * depth) == 0
    assert config.stage_k % depth == 0
    assert config.ring_bytes(in_features, tokens, device.shared_bytes) >= 2 * config.stage_bytes(tokens)
    assert config.splits == 1 or (form.x_bytes == 1 and device == H200)


@pytest.mark.parametrize(
    ("form", "in_features", "tokens", "device", "splits", "travels"),
    [
        (FP8, 14336, 8, H200, 1, False),
        (FP8, 14336, 16, H200, 2, False),
        (FP8, 28672, 16, H200, 4, False),
        (PLAIN, 14336, 4, H200, 1, False),
        (PLAIN, 14336, 16, H200, 1, True),
        (PLAIN, 4096, 16, RTX, 1, True),
    ],
)
def test_long_rows_are_shared_or_travel(
    form: WeightForm, in_features: int, tokens: int, device: Device, splits: int, travels: bool
) -> None:
    config = stream_config(4096, in_features, form, tokens, device)
    assert config is not None
    assert (config.splits, config.stream_x) == (splits, travels)


def test_clusters_are_whole() -> None:
    """Of 132 SMs, clusters of four take 120."""
    config = stream_config(4096, 28672, FP8, 16, H200)
    assert config is not None
    assert config.splits == 4
    weight = WeightBuffers(Buffer("weight", "float8_e4m3fn", (4096, 28672)), Buffer("scale", "float32", (4096,)))
    (grid,) = Streaming(16, "bfloat16", H200, config).grid(weight)
    assert sum(-(-132 * multiplier // divisor) for _, multiplier, divisor in grid.terms) == 120
