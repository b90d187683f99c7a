"""The fields by which completions and chats say how to generate."""

import atexit
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from trtllm_lite.request_fields.draws import DRAWS
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.runtime.session.sampling_params import MAX_SEQUENCES, SamplingParams
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import convert
from trtllm_lite.serve.bodies.requested import REQUESTED, struct_of

NumSequences = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)]
"""The type of ``n``, checked on decoding, because the server admits ``n`` sequences before it checks other fields."""


_MOST_DIGITS = 9  # of a token id
_NUM_KEPT = 64  # SamplingParams of earlier requests that are kept
_GRAMMARS = (
    *("response_format", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
"""Names of fields that give a grammar, which the text must match."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``include_usage``: an additional last event has the numbers of tokens; ``continuous_usage_stats``: every event.

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


if TYPE_CHECKING:

    class _Requested(msgspec.Struct, kw_only=True):
        """All request fields; those declared here are read by their names."""

        max_tokens: int | None
        stop: str | list[str] | None
        bad_words: list[str] | None
        use_beam_search: bool
        skip_special_tokens: bool
        prompt_logprobs: int | None

else:
    _Requested = struct_of("_Requested")


class SamplingFields(_Requested, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's fields, and vLLM's further ones, of the same meaning as those of ``SamplingParams``.

    ``user``, ``metadata`` and similar fields are accepted and ignored.
    """

    model: str = ""
    n: NumSequences = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None

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
        return not self.bad_words and not any(getattr(self, name) is not None for name in _GRAMMARS)

    def sampling_params(self, *, max_tokens: int | None, draws: bool, **own: Any) -> SamplingParams:
        """The parameters that these fields ask for; ``own`` are those that an endpoint decides, such as ``logprobs``.

        Without any of ``DRAWS`` the model's own defaults hold, or temperature 1 if it has none (``draws`` says whether
        it has some). Raises ArgumentError.
        """
        given = {name: getattr(self, called) for name, (called, _) in REQUESTED.items()}
        values = {name: value for name, value in given.items() if value is not None}
        values |= {name: adapt(values[name]) for name, adapt in _ADAPTED.items() if name in values}
        if not draws and not values.keys() & set(DRAWS):
            values["temperature"] = 1.0
        values |= {"max_tokens": max_tokens, "n": self.n, "guided_decoding": self.guided()}
        return _checked(values | own)

    @property
    def grammar_field(self) -> str:
        """The name of the field that gives the grammar of the text; ``tools`` if no such field is set."""
        return next((name for name in _GRAMMARS if getattr(self, name) is not None), "tools")

    def guided(self) -> GuidedDecodingParams | None:
        """The grammar that the text must match, from whichever field gives one."""
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


def _by_token_id(biases: dict[str, float]) -> dict[int, float]:
    if not all(token.isascii() and token.isdigit() and len(token) <= _MOST_DIGITS for token in biases):
        raise ApiError(400, "logit_bias: expected token ids as keys", param="logit_bias", code="invalid_value")
    return {int(token): bias for token, bias in biases.items()}


_ADAPTED: Mapping[str, Callable[[Any], Any]] = {
    "stop": lambda words: words or None,
    "truncate_prompt_tokens": lambda count: None if count == -1 else count,
    "logit_bias": _by_token_id,
}
"""Converts values that some HTTP clients write in another form."""


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
    """OpenAI's response_format, as fields of GuidedDecodingParams."""
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
