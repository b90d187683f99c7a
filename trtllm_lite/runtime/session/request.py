"""Defines requests, which go into the event loop, and responses, which come out of it token by token."""

import numbers
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.prompt_embeds import PromptEmbeds
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.runtime.values import is_unicode, whole_number


class FinishReason(StrEnum):
    """The reason why a sequence ended."""

    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"

    @property
    def word(self) -> str:
        """The reason in the words of TensorRT-LLM's API: "stop", "length", "cancelled" or "timeout"."""
        return "stop" if self in (FinishReason.END_ID, FinishReason.STOP_WORDS) else self.value


@dataclass(frozen=True)
class Request:
    """One sequence to generate, or one beam search.

    ``prompt_ids`` is int32[prompt_len], not empty. Requests with the same prompt and seed sample different tokens if
    their ``sequence_index`` differs. A greater ``priority`` (-100 to 100) is served earlier; after ``timeout`` seconds
    the request ends with the tokens so far. Only requests of equal ``cache_salt`` share KV cache content, and only with
    equal adapters (``lora_request``). ``prompt_embeds`` take the place of some of the prompt's tokens.

    ``on_end`` is called once when a request that was submitted has ended, whether or not its handle still exists, with
    the request, why it ended (None for an error), and its ``_core.RequestTimings``. Threads that deliver results call
    it before the end is visible elsewhere; it must be quick, and raise nothing.

    Raises ArgumentError for a priority, timeout or salt of the wrong type or out of its range.
    """

    prompt_ids: NDArray[np.int32]
    params: SamplingParams = field(default_factory=SamplingParams)
    sequence_index: int = 0
    priority: int = 0
    timeout: float | None = None
    cache_salt: str = ""
    lora_request: LoRARequest | None = None
    prompt_embeds: PromptEmbeds | None = None
    on_end: "Callable[[Request, FinishReason | None, Any], None] | None" = None

    def __post_init__(self) -> None:
        check_service(self.priority, self.timeout)
        if not isinstance(self.cache_salt, str) or not is_unicode(self.cache_salt):
            raise ArgumentError(f"cache_salt is {shown(self.cache_salt)}: expected a string of valid Unicode")
        if not isinstance(self.lora_request, LoRARequest | None):
            raise ArgumentError(f"lora_request is {shown(self.lora_request)}: expected a LoRARequest, or None")

    def tell_unstarted(self, reason: "FinishReason | None") -> None:
        """Call ``on_end`` for a request that ends before it reaches the event loop."""
        if self.on_end is not None:
            self.on_end(self, reason, core().RequestTimings())

    def sequences(self) -> "list[Request]":
        """Requests for one sequence each, the first of which returns the prompt's outputs; one for a beam search."""
        params = self.params
        if params.use_beam_search or params.num_sequences == 1:
            return [self]
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
        others = replace(params, prompt_logprobs=None, return_context_logits=False)
        rest = [replace(self, params=others, sequence_index=index) for index in range(1, params.num_sequences)]
        return [replace(self, params=params), *rest]


class Response(NamedTuple):
    """What one step adds to a request's output. The last response of a request has a ``finish_reason``.

    ``token_id`` is None if a request ends without another token (cancelled, timed out). ``text`` is the text that has
    become final: a token may add none, or the text of several tokens. ``logprobs`` (``_core.sampling.RowLogprobs``) and
    ``generation_logits`` float32[vocab], from which the token was drawn, are set if the request asked for them.
    """

    token_id: int | None
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: Any = None
    generation_logits: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that a beam search has found, and the ``score`` by which it was ranked."""

    token_ids: list[int]
    text: str
    score: float
    finish_reason: FinishReason


def check_service(priority: Any, timeout: Any) -> None:
    """Raise ArgumentError for a priority or a timeout of the wrong type or out of its range."""
    most = core().MAX_PRIORITY
    whole_number("priority", priority, -most, most)
    if timeout is not None and not _is_duration(timeout):
        raise ArgumentError(f"timeout is {shown(timeout)}: expected seconds above 0, or None for no timeout")


def _is_duration(value: Any) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return float(value) > 0
    except OverflowError:
        return False
