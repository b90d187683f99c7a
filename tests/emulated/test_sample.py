"""Sampling without a GPU: a cluster of blocks computes a row, or on sm_80 the last block to arrive does."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.sample_checks import (
    WAYS,
    check_drafts,
    check_logprobs,
    check_masks,
    draw_all,
    peaks_of,
    ways_of,
    with_edits,
)
from tests.gpu.sampling import Sampling, draw


@pytest.mark.parametrize(("arch", "vocab"), [("sm_80", 1000), ("sm_80", 1001), ("sm_90a", 1000)])
def test_draws(arch: str, vocab: int) -> None:
    ways = ways_of(len(WAYS))
    logits = torch.randn(len(ways), vocab) * 3
    assert draw_all(logits, ways, 2, 2, Emulator(arch)) == [
        draw(row, way) for row, way in zip(logits, ways, strict=True)
    ]


def test_ties_at_the_borders() -> None:
    ways = ways_of(2 * len(WAYS))
    logits = torch.randint(-4, 5, (len(ways), 1000)).float()
    logits[::2] = 1.25  # all of them are equal
    assert draw_all(logits, ways, 2, 2, Emulator("sm_90a")) == [
        draw(row, way) for row, way in zip(logits, ways, strict=True)
    ]


def test_edits() -> None:
    ways = [with_edits(way, 1000, row) for row, way in enumerate(ways_of(len(WAYS)))]
    logits = peaks_of(len(ways), 1000, "cpu")
    assert draw_all(logits, ways, 2, 2, Emulator("sm_90a")) == [
        draw(row, way) for row, way in zip(logits, ways, strict=True)
    ]


def test_log_probabilities() -> None:
    check_logprobs(len(WAYS), 1000, 20, Emulator("sm_90a"))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("arch", "vocab"), [("sm_80", 1001), ("sm_90a", 1000)])
def test_drafts(arch: str, vocab: int, masked: bool) -> None:
    check_drafts(vocab, 2 * len(WAYS), 2, 2, Emulator(arch), masked=masked)


@pytest.mark.parametrize(("arch", "vocab", "spread"), [("sm_80", 1001, 1), ("sm_90a", 1000, 0.2), ("sm_90a", 1030, 3)])
def test_masks(arch: str, vocab: int, spread: float) -> None:
    check_masks(vocab, spread, 2, 2, Emulator(arch))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_mask_makes_no_damaged_row_good(value: float) -> None:
    logits = torch.randn(4, 1001)
    logits[:3, 700] = value
    mask = torch.ones(1001, dtype=torch.bool)
    mask[700] = False
    ways = [Sampling(temperature=0.0), Sampling(seed=1), Sampling(top_k=5, seed=2), Sampling(seed=3)]
    tokens = draw_all(logits, ways, 2, 2, Emulator("sm_90a"), [mask] * 4)
    assert tokens == [-1, -1, -1, draw(logits[3], ways[3], mask)]
