"""The reference of the sampling kernel, in float64 and with plain sorts."""

from collections import Counter
from dataclasses import dataclass

import torch

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Sampling:
    """The parameters of one row; the names are those of SamplingParams."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    token_index: int = 0
    sequence_index: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    min_tokens: int = 0
    prompt: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()
    logprobs: int | None = None

    @property
    def counts_tokens(self) -> bool:
        """Does it penalise tokens that it has seen?"""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox4x32-10 (Salmon et al., SC11, section 4.3)."""
    words = list(counter)
    for number in range(10):
        low, high = (key[0] + number * 0x9E3779B9) & _MASK, (key[1] + number * 0xBB67AE85) & _MASK
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [second >> 32 ^ words[1] ^ low, second & _MASK, first >> 32 ^ words[3] ^ high, first & _MASK]
    return words


def _single(value: float) -> float:
    """As the card gets it."""
    return torch.tensor(value).item()


def uniform(sampling: Sampling) -> float:
    words = philox((sampling.token_index, 0, sampling.sequence_index, 0), (sampling.seed & _MASK, sampling.seed >> 32))
    return ((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def edited(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The float32 row [vocab] on the CPU, after bias, penalties and bans."""
    row = logits.cpu().clone()
    for token, bias in sampling.logit_bias:
        row[token] += bias
    if sampling.counts_tokens:
        for token in {*sampling.prompt, *sampling.generated}:
            scaled = row[token] * sampling.repetition_penalty
            row[token] = scaled if row[token] < 0 else row[token] / sampling.repetition_penalty
        for token, count in Counter(sampling.generated).items():
            row[token] -= torch.tensor(sampling.frequency_penalty) * count + sampling.presence_penalty
    row[list(sampling.banned)] = float("-inf")
    if sampling.token_index < sampling.min_tokens:
        row[list(sampling.stops)] = float("-inf")
    return row


def kept(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Weights [vocab] of the tokens in the draw, float64, 0 for the others; the largest is 1. ``logits`` on the CPU."""
    scaled = logits / sampling.temperature
    weights = (scaled - scaled.max()).double().exp()
    order = torch.sort(scaled, descending=True, stable=True).indices  # of equals the lowest id first
    if 0 < sampling.top_k < len(logits):
        weights[scaled < scaled[order[sampling.top_k - 1]]] = 0
    if sampling.top_p < 1:
        before = weights[order].cumsum(0) - weights[order]
        weights[order[before >= weights.sum() * _single(sampling.top_p)]] = 0
        weights[order[0]] = 1
    weights[weights < _single(sampling.min_p)] = 0
    return weights


def draw(logits: torch.Tensor, sampling: Sampling) -> int:
    """The token for a row [vocab]; -1 where none can be drawn."""
    logits = edited(logits, sampling)
    scaled = logits if sampling.temperature == 0 else logits / sampling.temperature
    if logits.isnan().any() or (logits == float("inf")).any() or scaled.max().isinf():
        return -1
    if sampling.temperature == 0:
        return int((logits == logits.max()).nonzero()[0])
    cumulative = kept(logits, sampling).cumsum(0)
    return int((cumulative > uniform(sampling) * cumulative[-1]).nonzero()[0])
