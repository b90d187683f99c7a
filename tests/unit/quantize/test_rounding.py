"""Rounding of matrices to few bits: grids, GPTQ and AWQ against their definitions and against rounding to nearest."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.formats import Float8
from trtllm_lite.quantize.rounding.awq import channel_factors, clipped
from trtllm_lite.quantize.rounding.gptq import gptq
from trtllm_lite.quantize.rounding.grid import Blocks, grid_of
from trtllm_lite.quantize.rounding.numbers import FP8, INT4, UINT4, Numbers

OUT, IN, ROWS = 48, 96, 400
BLOCKS = [Blocks(32), Blocks(32, UINT4), Blocks(16)]


def matrix(seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((OUT, IN)).astype(np.float32)


def activations(seed: int = 1) -> NDArray[np.float32]:
    """Correlated channels, some of which are outliers."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((ROWS, 20)) @ rng.standard_normal((20, IN)) + 0.3 * rng.standard_normal((ROWS, IN))
    mixed[:, rng.choice(IN, 6, replace=False)] *= 15
    return mixed.astype(np.float32)


def nearest(weights: NDArray[np.float32], blocks: Blocks) -> NDArray[np.float32]:
    split = blocks.split(weights, "layer")
    return grid_of(split, blocks).round(split).reshape(weights.shape)


def output_error(rounded: NDArray[np.float32], weights: NDArray[np.float32], x: NDArray[np.float32]) -> float:
    return float(np.square(x.astype(np.float64) @ (rounded - weights).T.astype(np.float64)).mean())


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_elements_are_off_by_half_a_step_at_most(blocks: Blocks) -> None:
    weights = matrix()
    weights[0] = 0
    weights[1, :32] = 3.5
    split = blocks.split(weights, "layer")
    grid = grid_of(split, blocks)
    integers = grid.nearest(split)
    low, high = blocks.numbers.least, blocks.numbers.largest
    assert low <= integers.min() < 0.5 * (low + high) < integers.max() <= high
    off = np.abs(grid.meaning(integers) - split)
    allowed = np.where(blocks.numbers.zero_points, 1.0, 0.5)  # a rounded zero point moves the ends by up to half a step
    assert (off <= grid.scales[..., None] * allowed * 1.0001).all()
    assert not grid.meaning(integers)[0].any()


def test_the_grid_is_that_of_its_definition() -> None:
    """One block by hand: 16 numbers from -1 to 2 in steps of 0.2, with zero point 5."""
    split = np.array([-1.0, 2.0, 0.0, 0.11], np.float32).reshape(1, 1, 4)
    grid = grid_of(split, Blocks(4, UINT4))
    np.testing.assert_allclose(grid.scales, [[0.2]], rtol=1e-6)
    assert grid.zeros.tolist() == [[5]]
    assert grid.nearest(split).ravel().tolist() == [0, 15, 5, 6]
    symmetric = grid_of(split, Blocks(4))
    np.testing.assert_allclose(symmetric.scales, [[2 / 7]], rtol=1e-6)
    assert symmetric.nearest(split - 0.1).ravel().tolist() == [-4, 7, 0, 0]


@pytest.mark.parametrize("blocks", [*BLOCKS, Blocks(IN, FP8)], ids=str)
def test_gptq_is_better_than_rounding_to_the_nearest(blocks: Blocks) -> None:
    for seed in range(3):
        weights, x = matrix(seed), activations(seed + 10)
        integers, grid = gptq(weights, x.T @ x / len(x), blocks, "layer")
        assert blocks.numbers.least <= integers.min() < integers.max() <= blocks.numbers.largest
        rounded = grid.meaning(integers).reshape(weights.shape)
        unseen = activations(seed + 10)[: ROWS // 2]
        assert output_error(rounded, weights, unseen) < 0.6 * output_error(nearest(weights, blocks), weights, unseen)


@pytest.mark.parametrize("blocks", [*BLOCKS, Blocks(IN, FP8)], ids=str)
def test_gptq_rounds_to_the_nearest_where_channels_are_independent(blocks: Blocks) -> None:
    weights, gram = matrix(), np.diag(np.random.default_rng(2).uniform(0.1, 9, IN)).astype(np.float32)
    integers, grid = gptq(weights, gram, blocks, "layer")
    np.testing.assert_array_equal(grid.meaning(integers).reshape(weights.shape), nearest(weights, blocks))


def every(numbers: Numbers) -> NDArray[np.float32]:
    """All numbers of a type, ascending; FP8 numbers are read from their bytes by PyTorch."""
    if numbers is not FP8:
        return np.arange(numbers.least, numbers.largest + 1, dtype=np.float32)
    all_bytes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    return np.unique(all_bytes[np.isfinite(all_bytes)])


@pytest.mark.parametrize("numbers", [INT4, FP8], ids=lambda numbers: numbers.dtype)
def test_gptq_is_the_best_choice_for_the_last_column(numbers: Numbers) -> None:
    """With two columns, the second is optimal for a given first one: this is the definition of the algorithm."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((50, 2)) @ np.array([[1.0, 0.9], [0.0, 0.4]])
    gram, blocks = x.T @ x / len(x), Blocks(2, numbers)
    weights = rng.standard_normal((200, 2)).astype(np.float32)
    found, grid = gptq(weights, gram, blocks, "layer")
    scales, candidates = grid.scales, every(numbers)
    damped = gram + 0.01 * np.diag(gram).mean() * np.eye(2)
    first = candidates[np.abs(candidates - weights[:, :1] / scales).argmin(1)]
    np.testing.assert_array_equal(found[:, 0, 0], first)
    off = np.stack(
        [
            np.broadcast_to((first * scales[:, 0] - weights[:, 0])[:, None], (200, len(candidates))),
            candidates * scales - weights[:, 1:],
        ],
        -1,
    )
    best = candidates[np.einsum("nci,ij,ncj->nc", off, damped, off).argmin(1)]
    np.testing.assert_array_equal(found[:, 0, 1], best)


def test_the_grid_of_a_row_of_fp8_is_that_of_its_format() -> None:
    """Small and large rows, and one of zeros: scales and elements are those that the format itself gives."""
    weights = matrix() * np.geomspace(1e-6, 1e3, OUT, dtype=np.float32)[:, None]
    weights[5] = 0
    split, packed = Blocks(IN, FP8).split(weights, "layer"), Float8().pack(weights)
    grid = grid_of(split, Blocks(IN, FP8))
    np.testing.assert_allclose(grid.scales, packed["weight_scale"], rtol=1e-6)
    np.testing.assert_allclose(grid.round(split)[:, 0], Float8().dequantize(packed), rtol=1e-6)


def test_gptq_takes_channels_that_are_always_zero() -> None:
    x = activations()
    x[:, 7] = 0
    integers, grid = gptq(matrix(), x.T @ x / len(x), BLOCKS[0], "layer")
    assert np.isfinite(grid.meaning(integers)).all()


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_awq_is_better_than_rounding_to_the_nearest(blocks: Blocks) -> None:
    for seed in range(3):
        weights, x = matrix(seed), activations(seed + 20)
        sample, unseen = x[: ROWS // 2], x[ROWS // 2 :]
        factors = channel_factors([weights], np.abs(x).mean(0), sample, blocks, "layer")
        grid = clipped(weights * factors, sample / factors, blocks, "layer")
        rounded = grid.round(blocks.split(weights * factors, "layer")).reshape(weights.shape) / factors
        scaled = nearest(weights * factors, blocks) / factors
        plain = output_error(nearest(weights, blocks), weights, unseen)
        assert output_error(scaled, weights, unseen) < 0.8 * plain
        assert output_error(rounded, weights, unseen) < 0.8 * plain


def test_awq_leaves_equal_channels_alone() -> None:
    x = np.random.default_rng(0).choice(np.array([-1.0, 1.0], np.float32), (ROWS, IN))
    np.testing.assert_array_equal(channel_factors([matrix()], np.abs(x).mean(0), x, BLOCKS[0], "layer"), np.ones(IN))


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_clipping_never_hurts_the_sample(blocks: Blocks) -> None:
    """Blocks are clipped independently; clipping gains if one weight is an outlier and its input is small."""
    weights, x = matrix(), activations()
    weights[:, ::32] *= 6
    x[:, ::32] *= 0.01
    split, parts = blocks.split(weights, "layer"), x.reshape(ROWS, -1, blocks.size)
    errors = [
        np.square(np.einsum("rbi,obi->rob", parts, grid.round(split) - split)).sum(0)
        for grid in (clipped(weights, x, blocks, "layer"), grid_of(split, blocks))
    ]
    assert (errors[0] <= errors[1] * 1.001).all()
    assert errors[0].sum() < 0.9 * errors[1].sum()


def test_a_block_size_that_does_not_divide_names_layer_and_remedy() -> None:
    with pytest.raises(BuildError, match=r"mlp.down: its 96 columns are no multiple of the block size 64: choose 32"):
        gptq(matrix(), np.eye(IN), Blocks(64), "mlp.down")
    with pytest.raises(BuildError, match=r"its 91 columns are no multiple .*: keep the layer in full precision"):
        Blocks(64).split(matrix()[:, :91], "mlp.down")
