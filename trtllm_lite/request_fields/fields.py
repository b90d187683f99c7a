"""All fields of a request, group by group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from trtllm_lite.request_fields.draws import Draws
from trtllm_lite.request_fields.field import TOKENS, WHOLE, Field, Http, Option


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Length and end. The text does not include the stop word or end token that ends it; the token ids do."""

    max_tokens: Annotated[
        int | None,
        Field(
            doc="Tokens to generate at most; None means as many as fit.",
            expected=WHOLE,
            http=Http(int | None),
            runner="max_new_tokens",
            aliases=("max_new_tokens", "n_predict"),
        ),
    ] = 32
    min_tokens: Annotated[
        int,
        Field(
            doc="Tokens to generate at least.",
            expected=WHOLE,
            http=Http(int, 0),
            aliases=("min_length", "min_new_tokens"),
        ),
    ] = 0
    end_id: Annotated[
        int | None,
        Field(
            doc="The token that ends the text, instead of the model's; -1 means that none does, like ``ignore_eos``.",
            runner="end_id",
            option=Option(int, "Token that ends the answer; -1 for none. [default: the model's own]"),
        ),
    ] = None
    ignore_eos: Annotated[
        bool, Field(doc="Whether to ignore the model's end tokens.", http=Http(bool, default=False))
    ] = False
    stop: Annotated[
        str | Sequence[str | Sequence[int]] | None,
        Field(
            doc="A string or token-id list that ends the text, or several in a list (64 of 256 characters or ids).",
            http=Http(str | list[str] | None),
            runner="stop_words_list",
        ),
    ] = None
    stop_token_ids: Annotated[
        Sequence[int] | None,
        Field(doc="Single tokens that end the text, too.", expected=TOKENS, http=Http(list[int] | None)),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, Field(doc="Whether the text keeps the string that ended it.", http=Http(bool, default=False))
    ] = False


@dataclass(frozen=True, kw_only=True)
class Continuations:
    """Several continuations of one prompt. A beam search draws nothing, and comes at the end."""

    n: Annotated[int, Field(doc="How many to return.", aliases=("num_return_sequences",))] = 1
    best_of: Annotated[
        int | None,
        Field(doc="How many to draw, of which the ``n`` with the greatest cumulative log probability are returned."),
    ] = None
    use_beam_search: Annotated[
        bool,
        Field(
            doc="Whether to search with ``best_of`` (or ``n``) beams instead of drawing.",
            http=Http(bool, default=False),
        ),
    ] = False
    length_penalty: Annotated[
        float,
        Field(
            doc="A beam's score is the sum of its log probabilities, divided by its length to this power.",
            http=Http(float, 1.0),
            option=Option(float, "With --num_beams: above 1 favours long answers. [default: 1]"),
        ),
    ] = 1.0
    early_stopping: Annotated[
        bool | str,
        Field(doc='When a search stops looking for better sequences: True, False or "never", as in transformers.'),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """Output. Reported probabilities are those of the model's own distribution, before guided decoding, penalties,
    temperature and cuts. Prompts have log probabilities and logits in engines built with gather_context_logits."""

    logprobs: Annotated[
        int | None,
        Field(
            doc="How many of the likeliest tokens to report beside each generated one, 0 to 20; None: report nothing.",
            expected=WHOLE,
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Field(
            doc="How many of the likeliest tokens to report beside each prompt token after the first, 0 to 20.",
            expected=WHOLE,
            http=Http(int | None),
        ),
    ] = None
    return_context_logits: Annotated[bool, Field(doc="Whether to report the logits of the prompt.")] = False
    return_generation_logits: Annotated[bool, Field(doc="Whether to report the logits of generated tokens.")] = False
    detokenize: Annotated[bool, Field(doc="False leaves the text empty.")] = True
    skip_special_tokens: Annotated[
        bool, Field(doc="False puts the names of special tokens into the text.", http=Http(bool, default=True))
    ] = True
    truncate_prompt_tokens: Annotated[
        int | None,
        Field(
            doc="How many tokens of the prompt to keep, its last ones; the output says how many were dropped.",
            http=Http(int | None),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RequestFields(Report, Draws, Continuations, Ends):
    """All fields except that of guided decoding, whose type is a class."""
