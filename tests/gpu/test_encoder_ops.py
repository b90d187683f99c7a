"""Bidirectional attention and pooling on a GPU."""

import pytest
import torch

from tests.gpu.device import GPU
from tests.gpu.encoder_checks import check_pooling, check_ragged_attention

DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [(12, 32), (12, 64), (8, 128), (2, 80), (1, 256)])
@pytest.mark.parametrize("lengths", [[1], [31, 32, 33, 63, 64, 65, 127, 128, 129], [1, 700, 3, 17], [20] * 300])
def test_ragged_attention(lengths: list[int], heads: int, head_dim: int, dtype: torch.dtype) -> None:
    check_ragged_attention(lengths, heads, head_dim, dtype, machine=GPU)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("window", [0, 1, 64, 500])
def test_long_texts(head_dim: int, window: int) -> None:
    how = {"window": window, "half_dim": head_dim // 2, "is_long": True, "machine": GPU}
    check_ragged_attention([3000, 1, 129, 1024], 4, head_dim, torch.bfloat16, **how)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_steps_of_32_keys(head_dim: int) -> None:
    how = {"is_long": True, "shared_bytes": 300 * (head_dim * 2 + 16), "machine": GPU}
    check_ragged_attention([150, 20, 128, 600], 2, head_dim, torch.float16, **how)


@pytest.mark.parametrize("most_distance", [3, 128])
def test_biases(most_distance: int) -> None:
    check_ragged_attention([514, 5, 77], 12, 64, torch.float16, most_distance=most_distance, machine=GPU)


@pytest.mark.parametrize("hidden", [64, 384, 768, 2056])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("takes_mean", "divides_by_norm"), [(True, True), (True, False), (False, True)])
def test_pooling(hidden: int, dtype: torch.dtype, takes_mean: bool, divides_by_norm: bool) -> None:
    how = {"takes_mean": takes_mean, "divides_by_norm": divides_by_norm, "machine": GPU}
    check_pooling([1, 4000, 7, 3], hidden, dtype, **how)
