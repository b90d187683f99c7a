"""KvCacheConfig, SchedulerConfig and SpeculativeConfig say how an engine is run.

The names of the first two are those of TensorRT-LLM's LLM API.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from trtllm_lite.common.vocabulary import MAX_DRAFT_LEN, STATE_DTYPES
from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import takes_foreign_fields
from trtllm_lite.runtime.values import check_flag, check_positive, whole_number


class CapacitySchedulerPolicy(StrEnum):
    """The policy by which requests are admitted; SchedulerConfig describes each."""

    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    MAX_UTILIZATION = "MAX_UTILIZATION"


class ContextChunkingPolicy(StrEnum):
    """How prompts are spread over steps."""

    FIRST_COME_FIRST_SERVED = "FIRST_COME_FIRST_SERVED"


_LONGEST_NGRAM = 16  # the C++ side has the same limit
_MOST_CACHED = 1 << 30


@takes_foreign_fields(calls.KV_CACHE_CONFIG)
@dataclass(frozen=True, kw_only=True)
class KvCacheConfig:
    """The paged KV cache. It is never larger than a full batch of full sequences needs; three fields make it smaller:

    - ``max_tokens``: the tokens that it holds at most, of all sequences together, if no sliding window frees blocks;
      states of recurrent layers take memory beyond that
    - ``free_gpu_memory_fraction``: its share of the device's free memory (for CPU engines the host's)
    - ``max_gpu_total_bytes``: its greatest size; 0 and None mean no bound

    ``enable_block_reuse``: requests share the blocks of equal prefixes, and blocks of ended requests serve later ones
    until their room is needed. ``state_snapshot_interval``: states of recurrent layers are kept after every so many
    blocks of a prompt, so that others may go on from there, besides where a prompt ends and where two parted.
    ``host_cache_size``: bytes of host memory for what the cache has no room for: prefixes that others may reuse, and
    requests that MAX_UTILIZATION preempts.
    ``tokens_per_block``, ``dtype``, ``key_cache_dtype``, the type of keys beside values in 8 bits, and ``state_dtype``,
    the type of the matrices of recurrent layers, are properties of an engine: they say how to build it, and must agree
    with an engine that exists. None leaves them open, and so does "auto", but for ``state_dtype``, where the build then
    measures which type to choose.
    Other fields of TensorRT-LLM's class are accepted only with values that have no effect.

    Raises ArgumentError for an invalid value.
    """

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = None
    max_gpu_total_bytes: int | None = None
    host_cache_size: int | None = None
    tokens_per_block: int | None = None
    dtype: str = "auto"
    key_cache_dtype: str = "auto"
    state_dtype: str | None = None
    state_snapshot_interval: int | None = None

    def __post_init__(self) -> None:
        check_flag("enable_block_reuse", self.enable_block_reuse)
        check_positive("max_tokens", self.max_tokens)
        check_positive("tokens_per_block", self.tokens_per_block)
        _check_choice("state_dtype", self.state_dtype, (None, *STATE_DTYPES))
        check_positive("state_snapshot_interval", self.state_snapshot_interval)
        check_positive("max_gpu_total_bytes", self.max_gpu_total_bytes or None)
        check_positive("host_cache_size", self.host_cache_size or None)
        fraction = self.free_gpu_memory_fraction
        if fraction is not None and not (_is_number(fraction) and 0 < fraction <= 1):
            raise ArgumentError(
                f"free_gpu_memory_fraction is {shown(fraction)}: expected a number above 0 and at most 1"
            )


@takes_foreign_fields({})
@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """The order in which requests are served.

    ``capacity_scheduler_policy``: GUARANTEED_NO_EVICT admits a request when all blocks it can ever need are reserved;
    MAX_UTILIZATION admits more, and preempts the request that loses least if blocks run out.
    ``context_chunking_policy``: FIRST_COME_FIRST_SERVED, the only one. Raises ArgumentError for anything else.
    """

    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    context_chunking_policy: str | None = None

    def __post_init__(self) -> None:
        _check_choice("capacity_scheduler_policy", self.capacity_scheduler_policy, tuple(CapacitySchedulerPolicy))
        _check_choice("context_chunking_policy", self.context_chunking_policy, (None, *ContextChunkingPolicy))


@takes_foreign_fields({})
@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Configures speculative decoding: draft tokens, so that a step may produce several tokens; the names are vLLM's.

    What is generated does not change: a draft token is kept if it is the one that would have been sampled in its
    place. ``num_speculative_tokens``: how many tokens are drafted at most; the engine must have been built for as many
    (``--max_draft_len``). ``enable_adaptive_verification``: only as many tokens are drafted as save time, judging
    by the times of steps and the acceptance of earlier drafts, so that generation is not slower than without drafts;
    False: always as many as possible, which makes steps reproducible. ``method`` is one of

    - ``ngram``: the tokens that followed the latest earlier occurrence of the last ``prompt_lookup_max`` tokens, or of
      fewer down to ``prompt_lookup_min``, in the prompt or output
    - ``suffix``: the tokens that most often followed earlier occurrences of the longest possible suffix of the text: in
      the prompt, in the output, or in earlier outputs of the same cache_salt. The outputs of the last
      ``suffix_decoding_max_cached_requests`` requests of each salt are kept (or of fewer, but at least half; 0: none).
      For each token of the suffix, up to ``suffix_decoding_max_spec_factor`` tokens are drafted, as long as their joint
      probability, judging by those occurrences, is at least ``suffix_decoding_min_token_prob``
    - ``synthetic``: the earlier continuation of the same prompt of the same cache_salt, with errors, so that of all
      drafts the share ``synthetic_acceptance_rates[i]`` is accepted up to and including draft token i. It measures what
      speculation would gain with such rates, whatever the weights; a prompt that was not run before gets no drafts

    - ``draft_model``: the continuation by a second, smaller model, whose engine is in the directory ``model``. It runs
      on the same device and needs the same vocabulary and tokens_per_block. It samples with each request's own
      parameters and random numbers
    - ``eagle3``: the continuation by a head that was trained on hidden states of the model (EAGLE-3), and whose engine
      is in the directory ``model``; otherwise as ``draft_model``. The engines of the model and of the head are built
      for each other: see ``convert --draft_model_dir`` and ``--target_model_dir``
    - ``mtp``: the continuation by a layer of the model that was trained to predict a further token (MTP), and that has
      an engine of its own; otherwise as ``eagle3``

    Requests under a grammar (``guided_decoding``) first draft the tokens that the grammar determines: with any method,
    and in engines that were built for drafts also without a SpeculativeConfig.

    Options of methods other than the chosen one must be left out. Raises ArgumentError for an
    invalid value.
    """

    method: str
    num_speculative_tokens: int = 4
    enable_adaptive_verification: bool = True
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    synthetic_acceptance_rates: Sequence[float] = ()
    model: str | Path | None = None

    def __post_init__(self) -> None:
        _check_choice("method of speculative_config", self.method, tuple(_METHODS))
        self._check_options_of_others()
        whole_number("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_LEN)
        check_flag("enable_adaptive_verification", self.enable_adaptive_verification)
        whole_number("prompt_lookup_max", self.prompt_lookup_max, 1, _LONGEST_NGRAM)
        whole_number("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        self._check_suffix()
        if self.method == "synthetic":
            self._check_synthetic()
        if _METHODS[self.method] == "model" and not isinstance(self.model, str | Path):
            raise ArgumentError(f"model of speculative_config is {shown(self.model)}: expected an engine's directory")

    def _check_options_of_others(self) -> None:
        others = tuple(prefix for prefix in _METHODS.values() if prefix != _METHODS[self.method])
        for field in fields(self):
            if field.name.startswith(others) and getattr(self, field.name) != field.default:
                raise ArgumentError(f"{field.name} is not an option of method {self.method}: leave it out")

    def _check_suffix(self) -> None:
        cached = "suffix_decoding_max_cached_requests"
        if whole_number(cached, self.suffix_decoding_max_cached_requests, 0, _MOST_CACHED) == 1:
            raise ArgumentError(f"{cached} is 1: expected 0, or at least 2")
        factor, least = self.suffix_decoding_max_spec_factor, self.suffix_decoding_min_token_prob
        if not _is_number(factor) or not 0 < factor < math.inf:
            raise ArgumentError(f"suffix_decoding_max_spec_factor is {shown(factor)}: expected a finite number above 0")
        if not _is_number(least) or not 0 <= least <= 1:
            raise ArgumentError(f"suffix_decoding_min_token_prob is {shown(least)}: expected a number from 0 to 1")

    def _check_synthetic(self) -> None:
        rates, count = self.synthetic_acceptance_rates, self.num_speculative_tokens
        valid = isinstance(rates, list | tuple) and len(rates) == count and all(map(_is_number, rates))
        if not valid or any(not 0 <= rate <= before for before, rate in pairwise((1.0, *rates))):
            raise ArgumentError(
                f"synthetic_acceptance_rates is {shown(rates)}: expected {count} numbers (num_speculative_tokens) "
                "from 0 to 1, none above the one before it"
            )


# The prefix that the names of each method's options have.
_METHODS = {
    "ngram": "prompt_lookup_",
    "suffix": "suffix_decoding_",
    "synthetic": "synthetic_",
    "draft_model": "model",
    "eagle3": "model",
    "mtp": "model",
}


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        raise ArgumentError(f"{name} is {shown(value)}: expected one of {', '.join(map(str, choices))}")
