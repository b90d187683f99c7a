"""The buffers that sampling on a GPU writes."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Buffer

SLOT_WORDS, EDIT_WORDS, _LOGPROB_WORDS = 24, 4, 42  # SamplingSlot, LogitEdit and DrawnLogprobs of slot.cuh
_MAX_COUNTED_TOKENS = 32 * 1024  # of a sequence that penalises its tokens; longer ones are sampled on the host
_MAX_GIVEN_EDITS = 1024  # biases, bans and stop tokens, besides


@dataclass(frozen=True)
class Outputs:
    """Buffers of sampling: ``tokens`` and ``logprobs`` of the step, ``last_tokens`` and ``slots`` for the next step.

    ``last_tokens`` has the complement of a token that ends its sequence.
    """

    tokens: Buffer
    logprobs: Buffer
    last_tokens: Buffer
    slots: Buffer


def outputs(vocab_size: int, max_seq_len: int) -> Outputs:
    """Buffers for rows of ``vocab_size`` logits of sequences of at most ``max_seq_len`` tokens."""
    max_edits = min(vocab_size, min(max_seq_len, _MAX_COUNTED_TOKENS) + _MAX_GIVEN_EDITS)
    return Outputs(
        Buffer("tokens", "int32", ("num_logits",)),
        Buffer("logprobs", "int32", ("num_logits", _LOGPROB_WORDS)),
        Buffer("last_tokens", "int32", ("num_slots",), "state"),
        Buffer("sampling_slots", "int32", ("num_slots", SLOT_WORDS + EDIT_WORDS * max_edits), "state"),
    )
