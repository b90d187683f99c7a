"""Sampling on the card gives the tokens of a float64 reference with the same random number, in any launch."""

from dataclasses import replace

import pytest
import torch

from tests.gpu.row_kernels import Sample
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
from trtllm_lite.plugins.sample.reference import kept


@pytest.mark.parametrize("vocab", [1, 7, 1000, 1001, 49152, 128256])
@pytest.mark.parametrize("spread", [0.01, 3, 30])
def test_draws(vocab: int, spread: float) -> None:
    ways = ways_of(3 * len(WAYS))
    logits = torch.randn(len(ways), vocab, device="cuda") * spread
    logits[:, ::5] = float("-inf")
    logits[:, vocab // 2] = 0.5 * spread  # at least one finite logit
    assert draw_all(logits, ways) == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize(("blocks", "cluster"), [(16, 8), (40, 8), (4, 4), (2, 2), (1, 1)])
def test_the_launch_changes_nothing(blocks: int, cluster: int) -> None:
    ways = ways_of(len(WAYS))
    logits = torch.randn(len(ways), 32000, device="cuda") * 3
    assert draw_all(logits, ways, blocks, cluster) == draw_all(logits, ways)


@pytest.mark.parametrize("vocab", [1000, 128256])
def test_ties_at_the_borders(vocab: int) -> None:
    ways = ways_of(4 * len(WAYS))
    logits = torch.randint(-4, 5, (len(ways), vocab), device="cuda").float()
    logits[::2] = 1.25  # all of them are equal
    assert draw_all(logits, ways) == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_rows_that_cannot_be_sampled(value: float) -> None:
    """A bad row gives -1, and its neighbours get their tokens."""
    logits = torch.randn(3, 1000, device="cuda")
    if value == float("-inf"):
        logits[1] = value
    logits[1, 700] = value
    ways = [Sampling(temperature=0.5, top_p=0.9, seed=row) for row in range(3)]
    tokens = draw_all(logits, ways)
    assert tokens[1] == -1
    assert tokens == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize("vocab", [7, 1001, 128256])
def testwith_edits(vocab: int) -> None:
    ways = [with_edits(way, vocab, row) for row, way in enumerate(ways_of(6 * len(WAYS)))]
    logits = peaks_of(len(ways), vocab)
    assert draw_all(logits, ways) == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_end_their_sequence(temperature: float) -> None:
    """The next step gets the complement of a token that ends its sequence; the step itself outputs the token."""
    vocab = 1000
    logits = torch.randn(40, vocab, device="cuda") * 5
    likely = logits.topk(3).indices.tolist()
    stops = [(), (0,), (vocab - 1, *likely[2]), (*range(9), *likely[3]), (*range(10), *likely[4])]
    ways = [
        Sampling(temperature=temperature, seed=row, stops=stops[row] if row < len(stops) else tuple(likely[row]))
        for row in range(len(logits))
    ]
    logits[1, 0] = 100.0
    tokens = draw_all(logits, ways)
    assert tokens == [draw(row, way) for row, way in zip(logits, ways, strict=True)]
    assert any(token in way.stops for token, way in zip(tokens[5:], ways[5:], strict=True))


def test_edits_leave_nothing_to_draw() -> None:
    ways = [Sampling(banned=tuple(range(7))), Sampling(banned=(0, 1, 2, 4, 5, 6)), Sampling(temperature=0.0)]
    assert draw_all(torch.randn(3, 7, device="cuda"), ways)[:2] == [-1, 3]


def test_drawn_tokens_are_counted() -> None:
    """Each step has new logits: the kernel counts tokens itself, and the reference gets the history."""
    vocab, rows, steps = 1000, 24, 30
    ways = [with_edits(way, vocab, row) for row, way in enumerate(ways_of(rows))]
    sample = Sample(vocab, rows)
    inputs = sample.inputs(list(range(rows)), ways)
    tokens, last_tokens = (torch.zeros(rows, device="cuda", dtype=torch.int32) for _ in range(2))
    for step in range(steps):
        logits = peaks_of(rows, vocab)
        sample(tokens, logits, last_tokens, inputs)
        found = tokens.tolist()
        assert found == [draw(row, way) for row, way in zip(logits, ways, strict=True)], f"step {step}"
        inputs["sample_counter"] += 1
        ways = [
            replace(way, generated=(*way.generated, token), token_index=way.token_index + 1)
            for way, token in zip(ways, found, strict=True)
        ]


@pytest.mark.parametrize("vocab", [7, 1001, 128256])
@pytest.mark.parametrize("spread", [0.5, 20])
def test_log_probabilities(vocab: int, spread: float) -> None:
    check_logprobs(3 * len(WAYS), vocab, spread)


@pytest.mark.parametrize(("blocks", "cluster"), [(8, 8), (4, 4), (2, 2), (1, 1)])
@pytest.mark.parametrize("vocab", [7, 1001, 128256])
@pytest.mark.parametrize("masked", [False, True])
def test_drafts(vocab: int, blocks: int, cluster: int, masked: bool) -> None:
    check_drafts(vocab, 6 * len(WAYS), blocks, cluster, masked=masked)


@pytest.mark.parametrize("spread", [0.05, 1, 5])
@pytest.mark.parametrize(("blocks", "cluster"), [(8, 8), (2, 2), (1, 1)])
@pytest.mark.parametrize("vocab", [7, 1001, 49152, 128256])
def test_masks(vocab: int, blocks: int, cluster: int, spread: float) -> None:
    check_masks(vocab, spread, blocks, cluster)


def test_rows_without_a_slot() -> None:
    """No token is drawn, whatever the logits."""
    sample = Sample(1000, 3)
    tokens, last_tokens = (torch.full((3,), -7, device="cuda", dtype=torch.int32) for _ in range(2))
    logits = torch.randn(3, 1000, device="cuda")
    logits[1] = float("nan")
    sample(tokens, logits, last_tokens, sample.inputs([2, -1, 0], [Sampling(temperature=0.0)] * 3))
    best = logits.argmax(1).tolist()
    assert tokens.tolist() == [best[0], -1, best[2]]
    assert last_tokens.tolist() == [best[2], -7, best[0]]


def test_frequencies() -> None:
    """Thousands of draws from one row, which differ only in their index, follow the distribution."""
    way = Sampling(temperature=0.7, top_k=20, top_p=0.95)
    row = torch.randn(1000)
    count = 16384
    ways = [replace(way, seed=99, token_index=i) for i in range(count)]
    tokens = draw_all(row.cuda().expand(count, -1).contiguous(), ways)
    drawn = torch.bincount(torch.tensor(tokens), minlength=1000).double() / count
    weights = torch.from_numpy(kept(row.numpy(), vars(way)))
    expected = weights / weights.sum()
    assert (drawn[expected == 0] == 0).all()
    deviation = (expected * (1 - expected) / count).sqrt()
    assert ((drawn - expected).abs() <= 6 * deviation).all()
