"""Defines the tools of a request, and the choice among them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    ``parameters`` is the JSON schema of its arguments. ``strict``: arguments have to follow it.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


@dataclass(frozen=True)
class NamedFunction:
    """The choice of one function, which must be called."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedFunction
