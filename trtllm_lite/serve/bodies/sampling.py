"""The fields by which completions and chats say how to generate."""

import atexit
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.runtime.session.sampling_params import MAX_SEQUENCES, SamplingParams
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import convert

NumSequences = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)]
"""Known to be in bounds before the server counts the sequences as taken in."""


_MOST_DIGITS = 9  # of a token id
_NUM_KEPT = 64  # parameters that earlier requests had
_FORMS = (
    *("response_format", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
"""Fields that say what the text must be."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``include_usage``: an event behind the last has the numbers of tokens; ``continuous_usage_stats``: all have.

    ``include_obfuscation`` changes nothing.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's field of this name: exactly one of its members is given."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | None = None


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's fields, and vLLM's further ones, of the same meaning as those of ``SamplingParams``.

    ``user``, ``metadata`` and the like are taken and mean nothing here.
    """

    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: NumSequences = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    response_format: dict[str, Any] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    length_penalty: float = 1.0
    use_beam_search: bool = False
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: int = 0
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: str = ""
    timeout: float | None = None

    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def usage_at_end(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_always(self) -> bool:
        """Whether every event of a stream has the numbers of tokens so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def is_quick(self) -> bool:
        """Whether nothing is asked for that takes long to prepare, such as a grammar, or bad words."""
        return not self.bad_words and not any(getattr(self, name) is not None for name in _FORMS)

    def sampling_params(self, *, max_tokens: int | None, draws: bool, **own: Any) -> SamplingParams:
        """The parameters that these fields ask for; ``own`` are those that an endpoint decides, such as ``logprobs``.

        Without any of temperature, top_p, top_k and min_p the model's own defaults hold, or temperature 1 if it has
        none (``draws`` says whether it has some). Raises ArgumentError.
        """
        given = (self.temperature, self.top_p, self.top_k, self.min_p)
        temperature = self.temperature if draws or any(value is not None for value in given) else 1.0
        values: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "n": self.n,
            "stop": self.stop or None,
            "stop_token_ids": self.stop_token_ids,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "repetition_penalty": self.repetition_penalty,
            "length_penalty": self.length_penalty,
            "use_beam_search": self.use_beam_search,
            "seed": self.seed,
            "logit_bias": self._logit_bias(),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "skip_special_tokens": self.skip_special_tokens,
            "truncate_prompt_tokens": None if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens,
            "prompt_logprobs": self.prompt_logprobs,
            "allowed_token_ids": self.allowed_token_ids,
            "bad": self.bad_words,
            "guided_decoding": self.form(),
        }
        return _checked(values | own)

    @property
    def form_field(self) -> str:
        """The name of the field that says what the text must be; if there is none, tools do."""
        return next((name for name in _FORMS if getattr(self, name) is not None), "tools")

    def form(self) -> GuidedDecodingParams | None:
        """What the text must be, by whichever of the fields that say so."""
        asked: dict[str, Any] = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        if self.structured_outputs is not None:
            asked = {**_given(asked), **_given(msgspec.structs.asdict(self.structured_outputs))}
        asked = {**_given(asked), **_response_format(self.response_format)}
        return GuidedDecodingParams(**asked) if asked else None

    def _logit_bias(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        if not all(token.isascii() and token.isdigit() and len(token) <= _MOST_DIGITS for token in self.logit_bias):
            raise ApiError(400, "logit_bias: expected token ids as keys", param="logit_bias", code="invalid_value")
        return {int(token): bias for token, bias in self.logit_bias.items()}


def _checked(values: dict[str, Any]) -> SamplingParams:
    """The parameters of these fields: mostly those of an earlier request, which are checked already."""
    key = tuple(values.items())
    try:
        hash(key)
    except TypeError:  # a list, or a dictionary
        return SamplingParams(**values)
    return _kept(key)


@lru_cache(maxsize=_NUM_KEPT)
def _kept(fields: tuple[tuple[str, Any], ...]) -> SamplingParams:
    return SamplingParams(**dict(fields))


atexit.register(_kept.cache_clear)  # parameters refer to objects of C++, which must end before the interpreter does


class _JsonSchema(msgspec.Struct, kw_only=True):
    """``strict``, ``name`` and ``description`` change nothing: the text always follows the schema."""

    schema: dict[str, Any] = {}


def _response_format(value: dict[str, Any] | None) -> dict[str, Any]:
    """What OpenAI's response_format asks for, as fields of GuidedDecodingParams."""
    kind = None if value is None else value.get("type")
    if value is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        return {"json": convert(value.get("json_schema"), _JsonSchema, "response_format.json_schema").schema}
    if kind == "structural_tag":
        return {"structural_tag": value}
    if kind == "grammar" and isinstance(value.get("grammar"), str):
        return {"grammar": value["grammar"]}
    if kind == "regex" and isinstance(value.get("regex"), str):
        return {"regex": value["regex"]}
    raise ApiError(
        400,
        "response_format.type: expected text, json_object, json_schema, structural_tag, grammar or regex",
        param="response_format",
        code="invalid_value",
    )


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
