"""The parameters of a sampled row, applied to the history of its sequence, and the token that it must get."""

from collections import Counter
from dataclasses import dataclass

import torch

from trtllm_lite.plugins.sample import reference


@dataclass(frozen=True)
class Sampling:
    """The parameters of one row; the names are those of SamplingParams."""

    temperature: float = 1.0
    top_n_sigma: float = 0.0
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
        """Whether the row penalises tokens that it has seen."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def edited(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The float32 row [vocab] on the CPU after bias, penalties and bans."""
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


def draw(logits: torch.Tensor, sampling: Sampling, allowed: torch.Tensor | None = None) -> int:
    """The token sampled from a row [vocab] among those ``allowed``; -1 if there is none."""
    seed = (sampling.seed & 0xFFFFFFFF, sampling.seed >> 32)
    number = reference.uniform(seed, sampling.token_index, sampling.sequence_index)
    row = edited(logits, sampling)
    if allowed is not None:
        row[~allowed] = float("-inf")
    return reference.draw(row.numpy(), vars(sampling), number)
