"""Sampling on the card: the tokens of a float64 reference with the same random number, whatever the launch."""

from dataclasses import replace

import pytest
import torch

from tests.gpu.row_kernels import Sample
from tests.gpu.sampling import Sampling, draw, kept

WAYS = [
    Sampling(),
    Sampling(temperature=0.0),
    Sampling(temperature=0.3),
    Sampling(temperature=5.0),
    Sampling(top_k=1),
    Sampling(top_k=40),
    Sampling(top_p=0.9),
    Sampling(top_p=0.05),
    Sampling(top_p=0.0),
    Sampling(top_p=0.999, temperature=2.0),
    Sampling(min_p=0.1),
    Sampling(top_k=500, top_p=0.7, min_p=0.02, temperature=0.8),
    Sampling(top_k=1 << 20, top_p=0.5),
]


def _draw_on_card(logits: torch.Tensor, ways: list[Sampling], blocks: int = 8) -> list[int]:
    rows = len(logits)
    sample = Sample(logits.shape[1], rows, blocks=blocks)
    slots = torch.randperm(rows + 3)[:rows].tolist()
    slots[-1] = -1
    inputs = sample.inputs(slots, ways)
    for _ in range(2):  # the second finds what the first left of the arrival counts
        tokens = torch.full((rows,), -7, device="cuda", dtype=torch.int32)
        last_tokens = torch.full((rows + 3,), -7, device="cuda", dtype=torch.int32)
        sample(tokens, logits, last_tokens, inputs)
        result: list[int] = tokens.tolist()
        expected = [-7] * (rows + 3)
        for slot, token in zip(slots, result, strict=True):
            if slot >= 0 and token >= 0:
                expected[slot] = token
        assert last_tokens.tolist() == expected
    assert not sample.arrivals.any()
    return result


def _ways(rows: int) -> list[Sampling]:
    """Every way in turn, each row with its own random number."""
    seeds = torch.randint(1 << 62, (rows,)).tolist()
    return [
        replace(WAYS[row % len(WAYS)], seed=seed * 2 + 1, token_index=row, sequence_index=row % 3)
        for row, seed in enumerate(seeds)
    ]


@pytest.mark.parametrize("vocab", [1, 7, 1000, 1001, 49152, 128256])
@pytest.mark.parametrize("spread", [0.01, 3, 30])
def test_draws(vocab: int, spread: float) -> None:
    ways = _ways(3 * len(WAYS))
    logits = torch.randn(len(ways), vocab, device="cuda") * spread
    logits[:, ::5] = float("-inf")
    logits[:, vocab // 2] = 0.5 * spread  # something finite
    assert _draw_on_card(logits, ways) == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize("blocks", [16, 40])
def test_the_launch_changes_nothing(blocks: int) -> None:
    ways = _ways(len(WAYS))
    logits = torch.randn(len(ways), 32000, device="cuda") * 3
    assert _draw_on_card(logits, ways, blocks) == _draw_on_card(logits, ways)


@pytest.mark.parametrize("vocab", [1000, 128256])
def test_ties_at_the_borders(vocab: int) -> None:
    ways = _ways(4 * len(WAYS))
    logits = torch.randint(-4, 5, (len(ways), vocab), device="cuda").float()
    logits[::2] = 1.25  # all alike
    assert _draw_on_card(logits, ways) == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_rows_that_cannot_be_sampled(value: float) -> None:
    """A bad row gives -1 and its neighbours their tokens."""
    logits = torch.randn(3, 1000, device="cuda")
    if value == float("-inf"):
        logits[1] = value
    logits[1, 700] = value
    ways = [Sampling(temperature=0.5, top_p=0.9, seed=row) for row in range(3)]
    tokens = _draw_on_card(logits, ways)
    assert tokens[1] == -1
    assert tokens == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


def test_frequencies() -> None:
    """Thousands of draws of one row by index alone follow the distribution."""
    way = Sampling(temperature=0.7, top_k=20, top_p=0.95)
    row = torch.randn(1000)
    count = 16384
    ways = [replace(way, seed=99, token_index=i) for i in range(count)]
    tokens = _draw_on_card(row.cuda().expand(count, -1).contiguous(), ways)
    drawn = torch.bincount(torch.tensor(tokens), minlength=1000).double() / count
    weights = kept(row, way)
    expected = weights / weights.sum()
    assert (drawn[expected == 0] == 0).all()
    deviation = (expected * (1 - expected) / count).sqrt()
    assert ((drawn - expected).abs() <= 6 * deviation).all()
