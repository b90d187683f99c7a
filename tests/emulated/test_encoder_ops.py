"""Bidirectional attention and pooling without a GPU: tails, masks, biases, rows of padding."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.encoder_checks import check_pooling, check_ragged_attention

LENGTHS = {
    "one token": [1],
    "edges of blocks": [31, 32, 33, 63, 64, 65],
    "ragged": [1, 200, 3, 17],
    "more than a warp's lanes": [1 + 7 * i % 20 for i in range(40)],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_lengths(lengths: list[int]) -> None:
    check_ragged_attention(lengths, 2, 32, torch.bfloat16, machine=Emulator())


@pytest.mark.each_value
@pytest.mark.parametrize(("heads", "head_dim", "dtype"), [(3, 64, torch.float16), (1, 128, torch.bfloat16)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_heads(heads: int, head_dim: int, dtype: torch.dtype, arch: str) -> None:
    check_ragged_attention([70, 1, 129], heads, head_dim, dtype, machine=Emulator(arch))


@pytest.mark.parametrize(("head_dim", "is_long"), [(64, True), (128, True), (80, False), (256, True)])
def test_long_texts_and_short_steps(head_dim: int, is_long: bool) -> None:
    """Steps have 32 keys where shared memory is small; blocks have 128 queries, so that some warps have none."""
    how = {"is_long": is_long, "shared_bytes": 300 * (head_dim * 2 + 16), "machine": Emulator(seed=3)}
    check_ragged_attention([150, 20, 128], 2, head_dim, torch.float16, **how)


@pytest.mark.parametrize("window", [1, 16, 64, 90])
@pytest.mark.parametrize("is_long", [False, True])
def test_windows(window: int, is_long: bool) -> None:
    how = {"window": window, "is_long": is_long, "machine": Emulator()}
    check_ragged_attention([1, 200, 33], 2, 32, torch.bfloat16, **how)


@pytest.mark.parametrize(("most_distance", "window"), [(3, 0), (128, 0), (40, 50)])
def test_biases(most_distance: int, window: int) -> None:
    how = {"most_distance": most_distance, "window": window, "machine": Emulator()}
    check_ragged_attention([170, 5], 2, 32, torch.float16, **how)


@pytest.mark.parametrize(("head_dim", "half_dim"), [(32, 16), (64, 8)])
def test_rope(head_dim: int, half_dim: int) -> None:
    """RoPE rotates whole heads, or their first elements only."""
    check_ragged_attention([40, 70], 3, head_dim, torch.float16, half_dim=half_dim, machine=Emulator())


@pytest.mark.parametrize("hidden", [64, 384, 2056])
@pytest.mark.parametrize(("takes_mean", "divides_by_norm"), [(True, True), (True, False), (False, True)])
def test_pooling(hidden: int, takes_mean: bool, divides_by_norm: bool) -> None:
    how = {"takes_mean": takes_mean, "divides_by_norm": divides_by_norm, "machine": Emulator()}
    check_pooling([1, 40, 7, 3], hidden, torch.bfloat16, **how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pooling_for_a_head(dtype: torch.dtype) -> None:
    how = {"takes_mean": True, "divides_by_norm": False, "to_head": True, "machine": Emulator()}
    check_pooling([1, 40, 7, 3], 384, dtype, **how)
