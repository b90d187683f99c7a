"""Sampling on the card: the tokens of a float64 reference with the same random number, whatever the launch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu.row_kernels import MAX_STOPS, Sample
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


def _draw_on_card(logits: torch.Tensor, ways: list[Sampling], blocks: int = 8, cluster: int = 8) -> list[int]:
    rows = len(logits)
    sample = Sample(logits.shape[1], rows, blocks=blocks, cluster=cluster)
    slots = torch.randperm(rows + 3)[:rows].tolist()
    given = logits.clone()
    for _ in range(2):  # the second finds what the first left of the arrival counts
        tokens = torch.full((rows,), -7, device="cuda", dtype=torch.int32)
        last_tokens = torch.full((rows + 3,), -7, device="cuda", dtype=torch.int32)
        sample(tokens, logits, last_tokens, sample.inputs(slots, ways))
        result: list[int] = tokens.tolist()
        expected = [-7] * (rows + 3)
        for slot, token, way in zip(slots, result, ways, strict=True):
            if token >= 0:
                expected[slot] = ~token if token in way.stops[:MAX_STOPS] else token
        assert last_tokens.tolist() == expected
    assert not sample.arrivals.any()
    assert torch.equal(logits.view(torch.int32), given.view(torch.int32))
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


@pytest.mark.parametrize(("blocks", "cluster"), [(16, 8), (40, 8), (4, 4), (2, 2), (1, 1)])
def test_the_launch_changes_nothing(blocks: int, cluster: int) -> None:
    ways = _ways(len(WAYS))
    logits = torch.randn(len(ways), 32000, device="cuda") * 3
    assert _draw_on_card(logits, ways, blocks, cluster) == _draw_on_card(logits, ways)


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


def _edits(way: Sampling, vocab: int, number: int) -> Sampling:
    """Penalties, biases and bans over the tokens that are likely to be drawn, ``vocab // 7`` apart."""
    ids = [(number + i * (vocab // 7)) % vocab for i in range(7)]
    history = [ids[i] for i in torch.randint(5, (12,)).tolist()]
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8, "presence_penalty": 0.6, "frequency_penalty": -0.3},
        {"presence_penalty": -0.5, "frequency_penalty": 0.7, "logit_bias": ((ids[0], 2.0), (ids[6], -1.5))},
        {"logit_bias": ((ids[1], -100.0), (ids[5], 1.25)), "banned": (ids[2], ids[3])},
        {"repetition_penalty": 1.1, "stops": (ids[0], ids[5]), "min_tokens": way.token_index + number // 6 % 2},
        {},
    ]
    return replace(way, prompt=tuple(history[:5]), generated=tuple(history[5:]), **kinds[number % len(kinds)])


def _peaks(rows: int, vocab: int) -> torch.Tensor:
    """Logits that leave the seven tokens of each row's edits likely, and a tie among them."""
    logits = torch.randn(rows, vocab, device="cuda")
    for row in range(rows):
        for i in range(7):
            logits[row, (row + i * (vocab // 7)) % vocab] += 6 + i // 2
        logits[row, (row + vocab // 7) % vocab] = logits[row, row % vocab]
    return logits


@pytest.mark.parametrize("vocab", [7, 1001, 128256])
def test_edits(vocab: int) -> None:
    ways = [_edits(way, vocab, row) for row, way in enumerate(_ways(6 * len(WAYS)))]
    logits = _peaks(len(ways), vocab)
    assert _draw_on_card(logits, ways) == [draw(row, way) for row, way in zip(logits, ways, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_end_their_sequence(temperature: float) -> None:
    """Are told to the next step by their complement; the step itself gives them as they are."""
    vocab = 1000
    logits = torch.randn(40, vocab, device="cuda") * 5
    likely = logits.topk(3).indices.tolist()
    stops = [(), (0,), (vocab - 1, *likely[2]), (*range(9), *likely[3]), (*range(10), *likely[4])]
    ways = [
        Sampling(temperature=temperature, seed=row, stops=stops[row] if row < len(stops) else tuple(likely[row]))
        for row in range(len(logits))
    ]
    logits[1, 0] = 100.0
    tokens = _draw_on_card(logits, ways)
    assert tokens == [draw(row, way) for row, way in zip(logits, ways, strict=True)]
    assert any(token in way.stops for token, way in zip(tokens[5:], ways[5:], strict=True))


def test_edits_leave_nothing_to_draw() -> None:
    ways = [Sampling(banned=tuple(range(7))), Sampling(banned=(0, 1, 2, 4, 5, 6)), Sampling(temperature=0.0)]
    assert _draw_on_card(torch.randn(3, 7, device="cuda"), ways)[:2] == [-1, 3]


def test_drawn_tokens_are_counted() -> None:
    """A sequence of steps with new logits each: the kernel keeps the counts, the reference is told the history."""
    vocab, rows, steps = 1000, 24, 30
    ways = [_edits(way, vocab, row) for row, way in enumerate(_ways(rows))]
    sample = Sample(vocab, rows)
    inputs = sample.inputs(list(range(rows)), ways)
    tokens, last_tokens = (torch.zeros(rows, device="cuda", dtype=torch.int32) for _ in range(2))
    for step in range(steps):
        logits = _peaks(rows, vocab)
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
    ways = [
        replace(_edits(way, vocab, row), logprobs=(None, 0, 1, 5, min(20, vocab))[row % 5])
        for row, way in enumerate(_ways(3 * len(WAYS)))
    ]
    logits = (_peaks(len(ways), vocab) * spread).round(decimals=1)  # ties
    logits[::4, 3:] = float("-inf")
    logits[::4, :3] = torch.tensor([1.0, 2.0, 0.0], device="cuda")
    sample = Sample(vocab, len(ways))
    tokens, last_tokens = (torch.zeros(len(ways), device="cuda", dtype=torch.int32) for _ in range(2))
    sample(tokens, logits, last_tokens, sample.inputs(list(range(len(ways))), ways))
    for row, (way, token) in enumerate(zip(ways, tokens.tolist(), strict=True)):
        assert token == draw(logits[row], way)
        if way.logprobs is None or token < 0:
            assert (sample.logprobs[row] == -7).all()
            continue
        own = logits[row].cpu().double()
        expected = own.log_softmax(0)
        best = torch.sort(own, descending=True, stable=True).indices[: way.logprobs]
        best = best[own[best] > float("-inf")]
        logprob, rank, top, values = sample.described(row)
        assert logprob == pytest.approx(float(expected[token]), rel=2e-6, abs=2e-6)
        assert rank == 1 + int((own > own[token]).sum())
        assert top == best.tolist()
        assert values == pytest.approx(expected[best].tolist(), rel=2e-6, abs=2e-6)


def test_rows_without_a_slot() -> None:
    """Nothing is drawn, whatever the logits."""
    sample = Sample(1000, 3)
    tokens, last_tokens = (torch.full((3,), -7, device="cuda", dtype=torch.int32) for _ in range(2))
    logits = torch.randn(3, 1000, device="cuda")
    logits[1] = float("nan")
    sample(tokens, logits, last_tokens, sample.inputs([2, -1, 0], [Sampling(temperature=0.0)] * 3))
    best = logits.argmax(1).tolist()
    assert tokens.tolist() == [best[0], -1, best[2]]
    assert last_tokens.tolist() == [best[2], -7, best[0]]


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
