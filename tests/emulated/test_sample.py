"""Sampling without a GPU: a cluster of blocks does a row, or (sm_80) the last block to arrive."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.sample_checks import WAYS, check_drafts, check_logprobs, draw_all, peaks_of, ways_of, with_edits
from tests.gpu.sampling import draw


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
    logits[::2] = 1.25  # all alike
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


@pytest.mark.parametrize(("arch", "vocab"), [("sm_80", 1001), ("sm_90a", 1000)])
def test_drafts(arch: str, vocab: int) -> None:
    check_drafts(vocab, 2 * len(WAYS), 2, 2, Emulator(arch))
