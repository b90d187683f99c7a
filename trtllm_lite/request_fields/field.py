"""Defines how the schema describes a field of a request."""

import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

WHOLE, TOKENS = "a whole number", "a list of token ids"
"""The expected values, in messages about values of another type."""


@dataclass(frozen=True)
class Http:
    """A field of the bodies of HTTP requests that generate text; ``type`` is its Python type.

    ``name`` is its name in bodies, if that differs; ``in_messages``: /v1/messages has it, too.
    """

    type: Any
    default: Any = None
    name: str | None = None
    in_messages: bool = False


@dataclass(frozen=True)
class Option:
    """An option of `trtllm-lite generate`, which takes a ``type``; ``help`` is its help, by default ``doc``."""

    type: type
    help: str | None = None


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of SamplingParams, whose annotation and default stand beside it.

    - ``doc``: what it does
    - ``expected``: what messages about values of another type say was expected, for a field of C++'s SamplingParams
    - ``http``: where HTTP bodies have it; None for nowhere
    - ``runner``: the argument of ``ModelRunner.generate`` for it; None if there is none
    - ``option``: the option of `trtllm-lite generate`, which is called as ``runner``, or else as the field
    - ``in_checkpoints``: generation_config.json may have a default for it; ``gguf`` is the key of GGUF files
    - ``aliases``: what other engines call it
    """

    doc: str
    expected: str | None = None
    http: Http | None = None
    runner: str | None = None
    option: Option | None = None
    in_checkpoints: bool = False
    gguf: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Number(Field):
    """A number that samplers of both devices know: float32, or int32 if it is ``whole``.

    It lies from ``low`` to ``high`` (None: any int32), and ``remedy`` says what to do about another value. ``off`` is
    the value with which it changes nothing; -1 means the same if ``minus_one_is_off``. With ``or_zero`` it may be 0,
    too, and values between 0 and ``low`` become 0.

    ``draws``: a request that gives such a number samples its tokens, and takes the other numbers with ``draws`` from
    the model's defaults; ``draws_in_runner``: the same for ModelRunner, which is greedy without them. ``cuts``: it
    removes tokens from the distribution, after the ``cuts`` that are declared before it, so that beam search excludes
    it.
    """

    whole: bool = False
    off: float
    low: float
    high: float | None
    remedy: str
    minus_one_is_off: bool = False
    or_zero: bool = False
    draws: bool = False
    draws_in_runner: bool = False
    cuts: bool = False

    @property
    def python_type(self) -> type:
        """``int`` or ``float``."""
        return int if self.whole else float

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", WHOLE if self.whole else "a number")

    @property
    def neutral(self) -> float:
        """``off``, as a number of the field's type."""
        return self.python_type(self.off)


@cache
def fields_of(declared: type) -> dict[str, Field]:
    """The fields of a dataclass that are annotated with a Field, in order."""
    found = {}
    for name, hint in typing.get_type_hints(declared, include_extras=True).items():
        for entry in getattr(hint, "__metadata__", ()):
            if isinstance(entry, Field):
                found[name] = entry
    return found


def numbers_of(declared: type) -> dict[str, Number]:
    """The fields that are numbers of both devices."""
    return {name: field for name, field in fields_of(declared).items() if isinstance(field, Number)}
