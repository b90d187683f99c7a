"""Requests, and the responses that answer them: what passes between ModelRunner and the batching loop."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class FinishReason(StrEnum):
    """Why a sequence ended."""

    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    LENGTH = "length"


@dataclass(frozen=True)
class Sampling:
    """How one request's tokens are drawn; the defaults are greedy.

    ``temperature`` 0 means greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean off. ``seed`` (64 bits) and the index
    of the generated token alone determine the random numbers, whatever else is in the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    ``prompt_ids`` is int32[prompt_len], not empty. Generation ends after ``max_new_tokens`` (>= 1) or after a token of
    ``end_ids``, which is generated too. ``context_logits`` needs an engine built with gather_context_logits.
    """

    prompt_ids: NDArray[np.int32]
    max_new_tokens: int
    end_ids: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    context_logits: bool = False
    generation_logits: bool = False

    @property
    def max_tokens(self) -> int:
        """Tokens that the KV cache must be able to hold."""
        return len(self.prompt_ids) + self.max_new_tokens


@dataclass(frozen=True)
class Response:
    """One generated token. ``finish_reason`` is set on the last one of a request.

    ``context_logits`` float32[prompt_len, vocab] comes with the first token, ``generation_logits`` float32[vocab]
    (what the token was chosen from) with each, if the request asked for them.
    """

    request_id: int
    token_id: int
    finish_reason: FinishReason | None = None
    context_logits: NDArray[np.float32] | None = None
    generation_logits: NDArray[np.float32] | None = None
