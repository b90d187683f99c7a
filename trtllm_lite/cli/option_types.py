"""Defines types of values that options of several commands have."""

import json
from math import isfinite
from typing import Any

import click

from trtllm_lite.errors import shown

COUNT = click.IntRange(min=1)
COUNT_OR_ZERO = click.IntRange(min=0)


def each_name(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """A callback: the names of an option that is given several times, or once as a JSON list, as in vLLM."""
    names: list[str] = []
    for value in values:
        if not value.startswith("["):
            names.append(value)
            continue
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise click.BadParameter(f'{shown(value)} is no JSON list such as ["a", "b"]', ctx, param)
        names += found
    return tuple(names)


class Finite(click.FloatRange):
    """A finite number in a range. NaN is refused explicitly, because click's comparisons would let it pass."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Implements click's interface."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class JsonObject(click.ParamType):
    """A JSON object, as a dictionary."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the dictionary, without checks of its entries."""
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self.fail(f'{shown(value)} is not a JSON object such as {{"method": "ngram"}}', param, ctx)
        return found


class NumBytes(click.ParamType):
    """A number of bytes, such as 80GB or 512 MiB."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        from trtllm_lite.common.units import parse_bytes

        try:
            return parse_bytes(str(value))
        except ValueError:
            self.fail(f"{shown(value)} is no number of bytes such as 80GB or 512 MiB", param, ctx)
