"""How tokens are drawn: numbers that the samplers of both devices know, and what else changes logits.

A new number is declared here, and computed in csrc/sampling/ and plugins/sample/.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from trtllm_lite.request_fields.field import TOKENS, Field, Http, Number, Option, numbers_of

_OFF_AT_0, _OFF_AT_1 = "use 0 to turn it off", "use 1 to turn it off"


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Draws. A request that gives none of {draws} takes the model's own generation defaults, and the likeliest token if
    the model has none; a request that gives some takes the others from the defaults. Tokens are cut from the draw by
    {cuts}, in this order."""

    temperature: Annotated[
        float | None,
        Number(
            doc="What logits are divided by; 0, or less than 0.01, takes the likeliest token.",
            off=1,
            low=0.01,  # dividing logits by less could overflow float32
            high=100,
            remedy="use 0 for greedy decoding",
            or_zero=True,
            draws=True,
            http=Http(float | None, in_messages=True),
            runner="temperature",
            option=Option(float, "Temperature of draws by --top_k, --top_p or --top_n_sigma. [default: 1]"),
            in_checkpoints=True,
            gguf="temp",
            aliases=("temp",),
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        Number(
            doc="Draw from tokens whose logits, after penalties and bans, are at most this many standard deviations "
            "below the largest; 0 or -1: any.",
            off=0,
            low=0,
            high=100,
            remedy=_OFF_AT_0,
            minus_one_is_off=True,  # llama.cpp's default
            draws=True,
            draws_in_runner=True,
            cuts=True,
            http=Http(float | None),
            runner="top_n_sigma",
            option=Option(float),
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Number(
            doc="Draw from this many of the likeliest tokens, and from those that tie with the last; 0 or -1: all.",
            whole=True,
            off=0,
            low=0,
            high=None,
            remedy=_OFF_AT_0,
            minus_one_is_off=True,
            draws=True,
            draws_in_runner=True,
            cuts=True,
            http=Http(int | None, in_messages=True),
            runner="top_k",
            option=Option(int, "Draw from this many of the likeliest tokens; 0 means all. [default: greedy]"),
            in_checkpoints=True,
            gguf="top_k",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Number(
            doc="Draw from the likeliest tokens that together have this probability.",
            off=1,
            low=0,
            high=1,
            remedy=_OFF_AT_1,
            draws=True,
            draws_in_runner=True,
            cuts=True,
            http=Http(float | None, in_messages=True),
            runner="top_p",
            option=Option(float),
            in_checkpoints=True,
            gguf="top_p",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Number(
            doc="Never draw tokens less likely than this share of the likeliest.",
            off=0,
            low=0,
            high=1,
            remedy=_OFF_AT_0,
            draws=True,
            cuts=True,
            http=Http(float | None),
            runner="min_p",
            option=Option(float),
            in_checkpoints=True,
            gguf="min_p",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Number(
            doc="Above 1: tokens of the prompt and of the text are less likely. None: the model's default.",
            off=1,
            low=0.01,
            high=100,
            remedy=_OFF_AT_1,
            http=Http(float | None),
            runner="repetition_penalty",
            option=Option(float, "Above 1: tokens seen before are less likely. [default: the model's]"),
            in_checkpoints=True,
            gguf="penalty_repeat",
            aliases=("repeat_penalty",),
        ),
    ] = None
    presence_penalty: Annotated[
        float,
        Number(
            doc="Lowers the logits of tokens that were generated before.",
            off=0,
            low=-2,  # OpenAI's bounds
            high=2,
            remedy=_OFF_AT_0,
            http=Http(float | None),
            runner="presence_penalty",
            option=Option(float),
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Number(
            doc="Lowers a token's logit each time it is generated.",
            off=0,
            low=-2,
            high=2,
            remedy=_OFF_AT_0,
            http=Http(float | None),
            runner="frequency_penalty",
            option=Option(float),
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        Field(
            doc="Equal seeds give equal tokens, independent of other requests; None or -1 draws a seed.",
            expected="a whole number from -2**63 to 2**64 - 1",
            http=Http(int | None),
            runner="random_seed",
            option=Option(int, "Makes sampling repeatable."),
            aliases=("random_seed",),
        ),
    ] = None
    bad: Annotated[
        str | Sequence[str | Sequence[int]] | None,
        Field(
            doc="A string or token-id list that must not appear, or several in a list (1024 of 64 characters or ids). "
            "For a string every token that holds it is impossible, and so is the end of every sequence of tokens in "
            "which the tokenizer would write it: at the start of a text, after a space or a line break. A model may "
            "still spell it in other pieces, letter by letter.",
            http=Http(list[str] | None, name="bad_words"),
            runner="bad_words_list",
            aliases=("bad_words",),
        ),
    ] = None
    bad_token_ids: Annotated[Sequence[int] | None, Field(doc="Single tokens that must not appear.")] = None
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Field(
            doc="What is added to the logits of tokens, by their ids.",
            expected="a dictionary from token ids to numbers",
            http=Http(dict[str, float] | None),
        ),
    ] = None
    allowed_token_ids: Annotated[
        Sequence[int] | None,
        Field(doc="The only tokens that may be generated.", expected=TOKENS, http=Http(list[int] | None)),
    ] = None


NUMBERS: Mapping[str, Number] = numbers_of(Draws)
"""The numbers that samplers of both devices know, in the order of C++'s struct and of the record of a GPU's slot."""
DRAWS = tuple(name for name, number in NUMBERS.items() if number.draws)
"""The numbers that make a request sample when they are given."""
