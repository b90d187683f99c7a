"""SamplingParams: what one request may ask of generation, and how that becomes the C++ sampler's parameters."""

import numbers
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.config import check_flag, check_positive
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.runtime.text.words import Words, parse_words

# Fields that go to the C++ parameters under the same name, and what they must be.
_FIELDS: Mapping[str, str] = {
    "max_tokens": "a whole number",
    "min_tokens": "a whole number",
    "temperature": "a number",
    "top_k": "a whole number",
    "top_p": "a number",
    "min_p": "a number",
    "repetition_penalty": "a number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "seed": "a whole number from 0 to 2**64 - 1",
    "stop_token_ids": "a list of token ids",
    "logit_bias": "a dictionary from token ids to numbers",
    "allowed_token_ids": "a list of token ids",
    "logprobs": "a whole number",
    "prompt_logprobs": "a whole number",
}
_FLAGS = (
    *("ignore_eos", "include_stop_str_in_output", "return_context_logits", "return_generation_logits"),
    *("detokenize", "skip_special_tokens", "use_beam_search"),
)
_EARLY_STOPPING = {False: "FALSE", True: "TRUE", "never": "NEVER"}
_DRAWS = ("temperature", "top_k", "top_p", "min_p")
_ANY_VOCABULARY = 2**31 - 1
_MAX_TOKENS = 2**24
MAX_SEQUENCES = 128
"""Most continuations that one prompt may ask for."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to continue a prompt. The names are those of TensorRT-LLM's and vLLM's classes.

    Length and end:

    - ``max_tokens``: tokens to generate at most; None means as many as fit. ``min_tokens``: nothing ends before
    - ``end_id``: the token that ends the text instead of the model's own; -1 for none, as ``ignore_eos``
    - ``stop``: a string or token-id list, or several in a list; ``stop_token_ids``: single tokens that end it too.
      The text ends before them unless ``include_stop_str_in_output``; the token ids always hold them

    Several continuations of one prompt:

    - ``n``: how many to return. ``best_of``: how many to draw, of which the ``n`` with the greatest cumulative log
      probability are returned
    - ``use_beam_search``: search with ``best_of`` (or ``n``) beams instead, which draws nothing, and comes at the end.
      A sequence's score is the sum of its log probabilities over its length to the power of ``length_penalty``;
      ``early_stopping`` (True, False, "never") says when to stop looking for better ones, as in transformers

    Draws. Of a request that gives none of the first four, the model's own generation defaults decide, and without those
    the likeliest token is taken; one that gives some takes the others from those defaults:

    - ``temperature`` (0: the likeliest token), ``top_k`` (0: all), ``top_p``, ``min_p``
    - ``repetition_penalty`` (None: the model's default), ``presence_penalty``, ``frequency_penalty``
    - ``seed``: gives the same tokens again, whatever else runs; None draws one
    - ``bad``: a string or token-id list that must not appear, or several in a list; ``bad_token_ids``: single tokens
    - ``logit_bias``: {token id: added to its logit}; ``allowed_token_ids``: all others are impossible

    Output:

    - ``logprobs``, ``prompt_logprobs``: how many of the likeliest tokens to report beside the chosen one, 0 to 20, for
      each generated token, and for each of the prompt but the first; None reports nothing. They are of the model's own
      distribution, before penalties, temperature and truncation
    - ``return_context_logits``, ``return_generation_logits``: the logits themselves. Those of prompts, and
      ``prompt_logprobs``, need an engine built with gather_context_logits
    - ``detokenize``: False leaves the text empty. ``skip_special_tokens``: False has their names in the text

    ``truncate_prompt_tokens`` keeps only the last so many tokens of a prompt; the output says how many were dropped.
    ``guided_decoding`` is not supported.

    Raises ArgumentError, on construction, for a value out of its range. What depends on the engine (token ids within
    its vocabulary, lengths within its limits) is checked when a request is made of it.
    """

    max_tokens: int | None = 32
    min_tokens: int = 0
    end_id: int | None = None
    ignore_eos: bool = False
    stop: str | Sequence[str | Sequence[int]] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False

    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    bad: str | Sequence[str | Sequence[int]] | None = None
    bad_token_ids: Sequence[int] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True

    truncate_prompt_tokens: int | None = None
    guided_decoding: None = None

    def __post_init__(self) -> None:
        self._check_options()
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        if self.end_id is not None and (isinstance(self.end_id, bool) or not isinstance(self.end_id, numbers.Integral)):
            raise ArgumentError(f"end_id is {self.end_id!r}: expected a token id, or -1 for none")
        bad_words = [*parse_words("bad", self.bad).sequences, *self._bad_tokens()]
        values = {name: getattr(self, name) for name in _FIELDS} | {"bad_words": bad_words}
        if self.max_tokens is None:
            values["max_tokens"] = _MAX_TOKENS
        self._check_native(_native(values), _ANY_VOCABULARY)

    @property
    def num_sequences(self) -> int:
        """Sequences to draw: ``best_of``, or ``n``."""
        return self.n if self.best_of is None else self.best_of

    @property
    def stop_words(self) -> Words:
        """``stop``, its strings and its token sequences apart."""
        return parse_words("stop", self.stop)

    def to_native(self, manifest: Manifest, tokenizer: Tokenizer | None, max_tokens: int) -> Any:
        """``_core.sampling.SamplingParams`` for a request to an engine; ``max_tokens`` is what its limits allow.

        Raises ArgumentError for token ids outside the vocabulary, or ``bad`` strings without a tokenizer.
        """
        model = manifest.model
        values = {name: getattr(self, name) for name in _FIELDS} | _draws(self, model.generation)
        if self.repetition_penalty is None:
            values["repetition_penalty"] = model.generation.get("repetition_penalty")
        native = _native(values | {"max_tokens": max_tokens, "bad_words": self._bad_words(tokenizer)})
        if self.seed is None:
            native.seed = secrets.randbits(63)
        if not self.ignore_eos and self.end_id != -1:
            native.end_ids = list(model.eos_token_ids) if self.end_id is None else [self.end_id]
        self._check_native(native, model.vocab_size)
        return native

    def to_native_beams(self) -> Any:
        """``_core.sampling.BeamSearchParams``, or None to sample."""
        if not self.use_beam_search:
            return None
        beams = core().sampling.BeamSearchParams()
        _set(beams, "num_beams", self.num_sequences, "a whole number")
        _set(beams, "length_penalty", self.length_penalty, "a number")
        beams.early_stopping = getattr(core().sampling.EarlyStopping, _EARLY_STOPPING[self.early_stopping])
        return beams

    def _check_native(self, native: Any, vocab_size: int) -> None:
        beams = self.to_native_beams()
        problems = native.violations(vocab_size) if beams is None else beams.violations(native, vocab_size)
        if problems:
            raise ArgumentError("\n".join(problems))

    def _check_options(self) -> None:
        for name in ("n", "best_of", "truncate_prompt_tokens"):
            check_positive(name, getattr(self, name))
        if self.num_sequences > MAX_SEQUENCES or self.n > self.num_sequences:
            raise ArgumentError(
                f"n is {self.n} and best_of {self.best_of}: expected at most {MAX_SEQUENCES}, and n not above best_of; "
                "ask again for more"
            )
        if self.early_stopping not in _EARLY_STOPPING:
            raise ArgumentError(f'early_stopping is {self.early_stopping!r}: expected True, False or "never"')
        if (self.stop_words or self.return_generation_logits) and self.use_beam_search:
            raise ArgumentError(
                "stop and return_generation_logits do not go with use_beam_search: leave them out; stop_token_ids does"
            )
        if self.guided_decoding is not None:
            raise ArgumentError(
                "guided_decoding is not supported: leave it out; allowed_token_ids, bad and logit_bias are supported"
            )

    def _bad_tokens(self) -> list[tuple[int, ...]]:
        return [(token,) for token in self.bad_token_ids or ()]

    def _bad_words(self, tokenizer: Tokenizer | None) -> list[tuple[int, ...]]:
        words = parse_words("bad", self.bad)
        if words.texts and tokenizer is None:
            raise ArgumentError("this engine has no tokenizer: give bad words as token ids")
        # A word inside a text has other tokens than at its start, where no space precedes it.
        spelled = [
            tuple(tokenizer.encode(text, add_special_tokens=False))
            for word in words.texts
            for text in (word, " " + word)
            if tokenizer is not None
        ]
        return list(dict.fromkeys([*words.sequences, *spelled, *self._bad_tokens()]))


def _draws(params: SamplingParams, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """temperature, top_k, top_p and min_p: given, or of the model's defaults, or neutral (None)."""
    given = {name: getattr(params, name) for name in _DRAWS if getattr(params, name) is not None}
    if params.use_beam_search or (not given and not defaults.get("do_sample")):
        return {"temperature": 0.0, **given}
    return {"temperature": 1.0, **{name: defaults[name] for name in _DRAWS if name in defaults}, **given}


def _native(values: Mapping[str, Any]) -> Any:
    """C++ parameters with ``values``; a None leaves what is neutral."""
    native = core().sampling.SamplingParams()
    for name, value in values.items():
        if value is not None:
            pairs = list(value.items()) if name == "logit_bias" and isinstance(value, Mapping) else value
            _set(native, name, pairs, _FIELDS.get(name, "lists of token ids"))
    return native


def _set(native: Any, name: str, value: Any, expected: str) -> None:
    try:
        if isinstance(value, bool):
            raise TypeError
        setattr(native, name, value)
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"{name} is {value!r}: expected {expected}") from error
