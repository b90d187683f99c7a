"""Sampling without a GPU, and without the clusters of sm_90: a block does a row."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.sample_checks import WAYS, check_logprobs, draw_all, peaks_of, ways_of, with_edits
from tests.gpu.sampling import draw


@pytest.mark.parametrize(("vocab", "blocks"), [(1000, 2), (1001, 1)])
def test_draws(vocab: int, blocks: int) -> None:
    ways = ways_of(len(WAYS))
    logits = torch.randn(len(ways), vocab) * 3
    assert draw_all(logits, ways, blocks, machine=Emulator("sm_80")) == [
        draw(row, way) for row, way in zip(logits, ways, strict=True)
    ]


def test_ties_at_the_borders() -> None:
    ways = ways_of(2 * len(WAYS))
    logits = torch.randint(-4, 5, (len(ways), 1000)).float()
    logits[::2] = 1.25  # all alike
    assert draw_all(logits, ways, 1, machine=Emulator("sm_80")) == [
        draw(row, way) for row, way in zip(logits, ways, strict=True)
    ]


def test_edits() -> None:
    ways = [with_edits(way, 1000, row) for row, way in enumerate(ways_of(len(WAYS)))]
    logits = peaks_of(len(ways), 1000, "cpu")
    assert draw_all(logits, ways, 1, machine=Emulator("sm_80")) == [
        draw(row, way) for row, way in zip(logits, ways, strict=True)
    ]


def test_log_probabilities() -> None:
    check_logprobs(len(WAYS), 1001, 20, Emulator("sm_80"))
