"""Checks sampling on any machine: it must draw the tokens of a float64 reference with the same random number."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.device import GPU, Machine
from tests.gpu.row_kernels import Sample
from tests.gpu.sampling import Sampling, draw
from trtllm_lite.plugins.sample import records, reference

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
    Sampling(top_n_sigma=1.5),
    Sampling(top_n_sigma=0.3, temperature=3.0),
    Sampling(top_n_sigma=2.5, top_k=300, top_p=0.9, min_p=0.01, temperature=1.7),
]


def draw_all(
    logits: torch.Tensor,
    ways: list[Sampling],
    blocks: int = 8,
    cluster: int = 8,
    machine: Machine = GPU,
    allowed: list[torch.Tensor | None] | None = None,
) -> list[int]:
    """The tokens of all rows, drawn twice; the kernel's other outputs are compared with the reference."""
    rows = len(logits)
    sample = Sample(logits.shape[1], rows, blocks=blocks, cluster=cluster, machine=machine)
    slots = torch.randperm(rows + 3)[:rows].tolist()
    given = logits.clone()
    for _ in range(2):  # the second launch finds the arrival counts that the first left
        tokens = torch.full((rows,), -7, device=logits.device, dtype=torch.int32)
        last_tokens = torch.full((rows + 3,), -7, device=logits.device, dtype=torch.int32)
        inputs = sample.inputs(slots, ways)
        if allowed is not None:
            sample.allow(inputs, allowed)
        expected = _reference(given, last_tokens, inputs, sample)
        sample(tokens, logits, last_tokens, inputs)
        left = inputs["slots"].cpu().numpy().view(records.record(sample.max_edits))
        left["edits"]["raw"] = 0
        assert tokens.tolist() == expected["tokens"].tolist()
        assert last_tokens.tolist() == expected["last_tokens"].tolist()
        assert np.array_equal(left, expected["sampling_slots"].view(left.dtype))
    assert not sample.arrivals.any()
    assert torch.equal(logits.view(torch.int32), given.view(torch.int32))
    result: list[int] = tokens.tolist()
    return result


def _reference(
    logits: torch.Tensor, last_tokens: torch.Tensor, inputs: dict[str, torch.Tensor], sample: Sample
) -> dict[str, np.ndarray]:
    """The outputs of Sample."""
    names = ("sample_slots", "sample_counter", "sample_drafts", "sample_masks")
    step = (logits, *(inputs[name] for name in names), last_tokens, inputs["slots"].view(torch.int32), sample.masks)
    operands = [operand.cpu().numpy() for operand in step]
    outputs = ("tokens", "logprobs", "last_tokens", "sampling_slots")
    return dict(zip(outputs, reference.reference(operands, {"max_edits": sample.max_edits}), strict=True))


def ways_of(rows: int) -> list[Sampling]:
    """Every kind of sampling in turn; each row has its own random number."""
    seeds = torch.randint(1 << 62, (rows,)).tolist()
    return [
        replace(WAYS[row % len(WAYS)], seed=seed * 2 + 1, token_index=row, sequence_index=row % 3)
        for row, seed in enumerate(seeds)
    ]


def with_edits(way: Sampling, vocab: int, number: int) -> Sampling:
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


def peaks_of(rows: int, vocab: int, device: str = "cuda") -> torch.Tensor:
    """Logits that make the seven tokens of each row's edits likely, with a tie among them."""
    logits = torch.randn(rows, vocab, device=device)
    for row in range(rows):
        for i in range(7):
            logits[row, (row + i * (vocab // 7)) % vocab] += 6 + i // 2
        logits[row, (row + vocab // 7) % vocab] = logits[row, row % vocab]
    return logits


def check_logprobs(rows: int, vocab: int, spread: float, machine: Machine = GPU) -> None:
    """Check tokens and their log probabilities, for rows with ties and for rows of a few tokens."""
    ways = [
        replace(with_edits(way, vocab, row), logprobs=(None, 0, 1, 5, min(20, vocab))[row % 5])
        for row, way in enumerate(ways_of(rows))
    ]
    logits = (peaks_of(rows, vocab, machine.device) * spread).round(decimals=1)  # ties
    logits[::4, 3:] = float("-inf")
    logits[::4, :3] = torch.tensor([1.0, 2.0, 0.0], device=machine.device)
    sample = Sample(vocab, rows, machine=machine)
    tokens, last_tokens = (torch.zeros(len(ways), device=machine.device, dtype=torch.int32) for _ in range(2))
    inputs = sample.inputs(list(range(len(ways))), ways)
    expected = _reference(logits, last_tokens, inputs, sample)
    sample(tokens, logits, last_tokens, inputs)
    words = sample.logprobs.cpu().numpy()
    pairs = zip(words.view(records.LOGPROBS)[:, 0], expected["logprobs"].view(records.LOGPROBS)[:, 0], strict=True)
    for row, (way, token, (found, wanted)) in enumerate(zip(ways, tokens.tolist(), pairs, strict=True)):
        assert token == expected["tokens"][row] == draw(logits[row], way)
        if way.logprobs is None or token < 0:
            assert (words[row] == -7).all()
            continue
        assert found["rank"] == wanted["rank"]
        assert found["tokens"].tolist() == wanted["tokens"].tolist()
        for name in ("logprob", "logprobs"):
            assert found[name] == pytest.approx(wanted[name], rel=2e-6, abs=2e-6)


def masks_of(logits: torch.Tensor) -> list[torch.Tensor | None]:
    """Masks of all kinds in turn: none, some tokens, a few, all but the likeliest, one, all, and no token."""
    rows, vocab = logits.shape
    masks: list[torch.Tensor | None] = []
    for row in range(rows):
        mask = torch.zeros(vocab, dtype=torch.bool)
        kind = row // 2 % 6 if row % 2 else None
        if kind == 0:
            mask |= torch.rand(vocab) < 0.5
            mask[row % vocab] = True
        elif kind == 1:
            mask[torch.randint(vocab, (5,))] = True
        elif kind == 2:
            mask |= True
            mask[logits[row].cpu().topk(min(40, vocab - 1)).indices] = False
        elif kind == 3:
            mask[vocab - 1 - row % min(vocab, 40)] = True
        elif kind == 4:
            mask |= True
        masks.append(None if kind is None else mask)
    return masks


def check_masks(vocab: int, spread: float, blocks: int = 8, cluster: int = 8, machine: Machine = GPU) -> None:
    """Check rows with and without masks side by side: no forbidden token is drawn, and other rows are unaffected."""
    ways = [with_edits(way, vocab, row) for row, way in enumerate(ways_of(4 * len(WAYS)))]
    logits = (peaks_of(len(ways), vocab, machine.device) * spread).round(decimals=1)  # ties
    allowed = masks_of(logits)
    tokens = draw_all(logits, ways, blocks, cluster, machine, allowed)
    assert tokens == [draw(row, way, mask) for row, way, mask in zip(logits, ways, allowed, strict=True)]
    nothing = [token for token, mask in zip(tokens, allowed, strict=True) if mask is not None and not mask.any()]
    assert nothing
    assert set(nothing) == {-1}


def check_drafts(
    vocab: int, rows: int, blocks: int = 8, cluster: int = 8, machine: Machine = GPU, *, masked: bool = False
) -> None:
    """Check that a draft's row is drawn from only if the draft was accepted, and that edits count accepted drafts."""
    ways = [
        replace(with_edits(way, vocab, row), logprobs=(None, 0, 3)[row % 3]) for row, way in enumerate(ways_of(rows))
    ]
    lengths = [row % 5 for row in range(rows)]
    starts = np.cumsum([0, *(1 + length for length in lengths)]).tolist()
    logits = peaks_of(starts[-1], vocab, machine.device)
    allowed: list[torch.Tensor | None] = [None] * len(logits)
    if masked:
        allowed = [None if mask is None or not mask.any() else mask for mask in masks_of(logits)]
    runs = [
        _run(logits[start:end], way, allowed[start:end])
        for start, end, way in zip(starts[:-1], starts[1:], ways, strict=True)
    ]
    # The first few draft tokens are right; a wrong one may be what a later row draws.
    drafts = [
        [token if place < row % 7 else (token + 1) % vocab for place, token in enumerate(run[:-1])]
        for row, run in enumerate(runs)
    ]
    sample = Sample(vocab, len(logits), blocks=blocks, cluster=cluster, machine=machine)
    inputs = sample.inputs_with_drafts(torch.randperm(rows).tolist(), ways, drafts)
    sample.allow(inputs, allowed)
    tokens = torch.full((len(logits),), -7, device=logits.device, dtype=torch.int32)
    last_tokens = torch.full((rows,), -7, device=logits.device, dtype=torch.int32)
    given, expected = logits.clone(), _reference(logits, last_tokens, inputs, sample)
    sample(tokens, logits, last_tokens, inputs)
    left = inputs["slots"].cpu().numpy().view(records.record(sample.max_edits))
    left["edits"]["raw"] = 0
    assert np.array_equal(left, expected["sampling_slots"].view(left.dtype))
    assert last_tokens.tolist() == expected["last_tokens"].tolist()
    assert torch.equal(logits.view(torch.int32), given.view(torch.int32))
    found, wanted = (
        words.view(records.LOGPROBS)[:, 0] for words in (sample.logprobs.cpu().numpy(), expected["logprobs"])
    )
    for row, (start, run) in enumerate(zip(starts[:-1], runs, strict=True)):
        kept = min(row % 7, lengths[row], [*run, -1].index(-1))  # no token follows a row without a token
        assert tokens[start : start + 1 + kept].tolist() == run[: 1 + kept]
        assert (tokens[start + 1 + kept : starts[row + 1]] == -7).all()
        if ways[row].logprobs is not None:
            place = slice(start, start + 1 + kept)
            assert found["rank"][place].tolist() == wanted["rank"][place].tolist()
            assert found["logprob"][place] == pytest.approx(wanted["logprob"][place], rel=2e-6, abs=2e-6)


def _run(logits: torch.Tensor, way: Sampling, allowed: list[torch.Tensor | None]) -> list[int]:
    """The token of each row, if the tokens before it were drawn one after the other."""
    tokens: list[int] = []
    for row, mask in zip(logits, allowed, strict=True):
        tokens.append(draw(row, way, mask))
        way = replace(way, generated=(*way.generated, tokens[-1]), token_index=way.token_index + 1)
    return tokens
