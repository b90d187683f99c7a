"""Defines SamplingParams: how to continue a prompt, and how that becomes the C++ sampler's parameters."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_type_hints

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import takes_foreign_fields
from trtllm_lite.request_fields.docstring import documented
from trtllm_lite.request_fields.draws import DRAWS
from trtllm_lite.request_fields.field import Field, fields_of
from trtllm_lite.request_fields.fields import RequestFields
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.runtime.session.native_params import native_params, set_param
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.runtime.text.words import WordLimits, Words, parse_words
from trtllm_lite.runtime.values import check_flag, check_length, check_list, check_positive, whole_number

_EARLY_STOPPING = {False: "FALSE", True: "TRUE", "never": "NEVER"}
_ANY_VOCABULARY = 2**31 - 1
_MAX_VOCABULARY = 1 << 20  # no model has this many tokens
_MAX_TOKENS = 2**24
_LEAST_SEED = -(2**63)  # the least seed of OpenAI's API
MAX_SEQUENCES = 128
"""The maximum number of continuations that one prompt may ask for."""


@takes_foreign_fields(calls.SAMPLING_PARAMS)
@documented
@dataclass(frozen=True, kw_only=True)
class SamplingParams(RequestFields):
    """How to continue a prompt. The names are those of TensorRT-LLM's and vLLM's classes.

    {fields}

    Guided decoding:

    - ``guided_decoding``: what the generated text must be, such as JSON of a schema: see :class:`GuidedDecodingParams`.
      It is applied last, so that penalties and bad words choose among what the grammar allows; a request that leaves no
      token at all ends with an error. Where the grammar allows the tokens drawn without it, the same tokens are drawn

    Raises ArgumentError, on construction, for a value out of its range. What depends on the engine (token ids within
    its vocabulary, lengths within its limits) is checked when a request is made.
    """

    guided_decoding: Annotated[
        GuidedDecodingParams | None,
        Field(doc="What the generated text must be, such as JSON of a schema.", runner="guided_decoding"),
    ] = None

    def __post_init__(self) -> None:
        self._check_options()
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        self._check_lists()
        if self.end_id is not None:
            whole_number("end_id", self.end_id, -1, _ANY_VOCABULARY)
        bad_words = [*self._bad.sequences, *self._bad_tokens()]
        values = self._values() | {"bad_words": bad_words}
        if self.max_tokens is None:
            values["max_tokens"] = _MAX_TOKENS
        self._check_native(native_params(values), _ANY_VOCABULARY)

    @property
    def num_sequences(self) -> int:
        """Sequences to draw: ``best_of``, or ``n``."""
        return self.n if self.best_of is None else self.best_of

    @cached_property
    def stop_words(self) -> Words:
        """``stop``, with strings and token sequences separated."""
        return parse_words("stop", self.stop, WordLimits(core().MAX_STOP_WORDS, core().MAX_STOP_WORD_LENGTH))

    @cached_property
    def _bad(self) -> Words:
        native = core().sampling
        return parse_words("bad", self.bad, WordLimits(native.MAX_BAD_WORDS, native.MAX_BAD_WORD_LENGTH))

    def to_native(self, manifest: Manifest, tokenizer: Tokenizer | None, max_tokens: int) -> Any:
        """``_core.sampling.SamplingParams`` for a request to an engine; ``max_tokens`` is what its limits allow.

        Raises ArgumentError for token ids outside the vocabulary, or ``bad`` strings without a tokenizer.
        """
        model = manifest.model
        values = self._values() | _draws(self, model.generation)
        if self.repetition_penalty is None:
            values["repetition_penalty"] = model.generation.get("repetition_penalty")
        end_ids = list(model.eos_token_ids) if self.end_id is None else [self.end_id]
        bans = self._bans(tokenizer, model.vocab_size, frozenset(end_ids))
        native = native_params(values | {"max_tokens": max_tokens, **bans})
        if values["seed"] is None:
            native.seed = secrets.randbits(63)
        if not self.ignore_eos and self.end_id != -1:
            set_param(native, "end_ids", end_ids, "token ids")
        self._check_native(native, model.vocab_size)
        return native

    def to_native_beams(self) -> Any:
        """``_core.sampling.BeamSearchParams``, or None to sample."""
        if not self.use_beam_search:
            return None
        beams = core().sampling.BeamSearchParams()
        set_param(beams, "num_beams", self.num_sequences, "a whole number")
        set_param(beams, "length_penalty", self.length_penalty, "a number")
        beams.early_stopping = getattr(core().sampling.EarlyStopping, _EARLY_STOPPING[self.early_stopping])
        return beams

    def _values(self) -> dict[str, Any]:
        """The fields of the C++ parameters as given; vLLM's seed -1 means no seed, other negative seeds wrap around."""
        values = {name: getattr(self, name) for name, field in FIELDS.items() if field.expected is not None}
        if isinstance(self.seed, int) and _LEAST_SEED <= self.seed < 0:
            values["seed"] = None if self.seed == -1 else self.seed % 2**64
        return values

    def _check_native(self, native: Any, vocab_size: int) -> None:
        beams = self.to_native_beams()
        problems = native.violations(vocab_size) if beams is None else beams.violations(native, vocab_size)
        if problems:
            raise ArgumentError("\n".join(problems))

    def _check_options(self) -> None:
        whole_number("n", self.n, 1, MAX_SEQUENCES)
        for name in ("best_of", "truncate_prompt_tokens"):
            check_positive(name, getattr(self, name))
        if not self.n <= self.num_sequences <= MAX_SEQUENCES:
            raise ArgumentError(
                f"n is {self.n} and best_of {shown(self.best_of)}: expected at most {MAX_SEQUENCES}, and n not above "
                "best_of; send another request for more"
            )
        if not isinstance(self.early_stopping, int | str) or self.early_stopping not in _EARLY_STOPPING:
            raise ArgumentError(f'early_stopping is {shown(self.early_stopping)}: expected True, False or "never"')
        if (self.stop_words or self.return_generation_logits) and self.use_beam_search:
            raise ArgumentError(
                "stop and return_generation_logits do not go with use_beam_search: leave them out, or use "
                "stop_token_ids in place of stop"
            )
        if self.guided_decoding is not None:
            self._check_guided()

    def _check_guided(self) -> None:
        if not isinstance(self.guided_decoding, GuidedDecodingParams):
            raise ArgumentError(f"guided_decoding is {shown(self.guided_decoding)}: expected GuidedDecodingParams")
        if self.use_beam_search:
            raise ArgumentError("guided_decoding does not go with use_beam_search: leave one of them out")
        if self.guided_decoding.source is not None and (self.ignore_eos or self.end_id is not None):
            raise ArgumentError(
                "guided_decoding ends a text by the model's own end tokens: leave end_id and ignore_eos out"
            )

    def _check_lists(self) -> None:
        """Raise for an argument that is no list, or too long a list, before its entries are looked at."""
        native = core().sampling
        most = {
            "stop_token_ids": native.MAX_STOP_TOKENS,
            "bad_token_ids": native.MAX_BAD_WORDS,
            "allowed_token_ids": _MAX_VOCABULARY,
        }
        for name, length in most.items():
            if getattr(self, name) is not None:
                check_list(name, getattr(self, name), length, "a list of token ids")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise ArgumentError(f"logit_bias is {shown(self.logit_bias)}: expected {FIELDS['logit_bias'].expected}")
            check_length("logit_bias", len(self.logit_bias), native.MAX_LOGIT_BIAS_ENTRIES, "entries")

    def _bad_tokens(self) -> list[tuple[int, ...]]:
        return [] if self.bad_token_ids is None else [(token,) for token in self.bad_token_ids]

    def _bans(self, tokenizer: Tokenizer | None, vocab_size: int, end_ids: frozenset[int]) -> dict[str, Any]:
        """``bad_words``; if ``bad`` bans more tokens than fit there, also the ``allowed_token_ids`` that are left."""
        if self._bad.texts and tokenizer is None:
            raise ArgumentError("this engine has no tokenizer: give bad words as token ids")
        spellings = [tokenizer.speller.spellings(text) for text in self._bad.texts if tokenizer is not None]
        banned = frozenset().union(*(found.tokens for found in spellings)) - end_ids
        sequences = [sequence for found in spellings for sequence in found.sequences]
        words = list(dict.fromkeys([*self._bad.sequences, *self._bad_tokens(), *sequences]))
        singles = [(token,) for token in sorted(banned) if token < vocab_size]
        if len(words) + len(singles) <= core().sampling.MAX_BAD_WORDS:
            return {"bad_words": words + singles}
        allowed = range(vocab_size) if self.allowed_token_ids is None else self.allowed_token_ids
        left = [token for token in allowed if token not in banned]
        if not left:
            raise ArgumentError(f"bad is {shown(self.bad)}, which every allowed token contains: leave it out")
        return {"bad_words": words, "allowed_token_ids": left}


FIELDS: Mapping[str, Field] = fields_of(SamplingParams)
"""All fields of SamplingParams, by name."""
_FLAGS = [name for name, kind in get_type_hints(SamplingParams).items() if kind is bool]


def _draws(params: SamplingParams, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of ``DRAWS`` as given, else from the model's defaults, else neutral (absent)."""
    given = {name: getattr(params, name) for name in DRAWS if getattr(params, name) is not None}
    if params.use_beam_search or (not given and not defaults.get("do_sample")):
        return {"temperature": 0.0, **given}
    return {"temperature": 1.0, **{name: defaults[name] for name in DRAWS if name in defaults}, **given}
