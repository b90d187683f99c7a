"""Arguments of ``ModelRunner.generate``, checked and spread over the requests of a batch."""

import numbers
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.request import Sampling

_MAX_SEED = 2**64 - 1
_MAX_TOP_K = 2**31 - 1


def per_request(name: str, value: Any, batch_size: int) -> list[Any]:
    """``value`` for each request: a list (or array) of that length, or one value for all.

    Raises ArgumentError if a list has another length.
    """
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        return [value] * batch_size
    if len(value) != batch_size:
        raise ArgumentError(
            f"{name} has {len(value)} values for {batch_size} prompts: expected one value, or one for each prompt"
        )
    return list(value)


def whole_number(name: str, value: Any, minimum: int, maximum: int) -> int:
    """``value`` as an int. Raises ArgumentError if it is not a whole number of the range."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= int(value) <= maximum:
        raise ArgumentError(f"{name} is {value!r}: expected a whole number from {minimum} to {maximum}")
    return int(value)


def end_ids(value: Any, batch_size: int, engine_end_ids: Sequence[int], vocab_size: int) -> list[frozenset[int]]:
    """The tokens that end each request: None means the engine's, -1 none at all."""

    def resolve(end_id: Any) -> frozenset[int]:
        if end_id is None:
            return frozenset(engine_end_ids)
        token = whole_number("end_id", end_id, -1, vocab_size - 1)
        return frozenset() if token == -1 else frozenset((token,))

    return [resolve(end_id) for end_id in per_request("end_id", value, batch_size)]


def samplings(given: Mapping[str, Any], batch_size: int, defaults: Mapping[str, Any]) -> list[Sampling]:
    """How each request samples.

    ``given`` maps temperature, top_k, top_p, min_p and random_seed to a value, a list, or None. A request that is given
    none of the first four follows the model's ``defaults`` (its generation_config): greedy unless they say do_sample.
    A request that is given some samples, and takes the others from the defaults. Without a seed a fresh one is drawn.
    """
    spread = {name: per_request(name, value, batch_size) for name, value in given.items()}
    return [_sampling({name: values[row] for name, values in spread.items()}, defaults) for row in range(batch_size)]


def _sampling(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Sampling:
    settings = {name: given[name] for name in _DOMAINS if given[name] is not None}
    for name, value in settings.items():
        check, expected = _DOMAINS[name]
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not check(value):
            raise ArgumentError(f"{name} is {value!r}: expected {expected}")
    seed = given["random_seed"]
    seed = secrets.randbits(63) if seed is None else whole_number("random_seed", seed, 0, _MAX_SEED)
    if not settings and not defaults.get("do_sample"):
        return Sampling(seed=seed)
    fallback = {name: defaults[name] for name in _DOMAINS if defaults.get(name) is not None}
    merged = {"temperature": 1.0, **fallback, **settings}
    return Sampling(
        temperature=float(merged["temperature"]),
        top_k=int(merged.get("top_k", 0)),
        top_p=float(merged.get("top_p", 1.0)),
        min_p=float(merged.get("min_p", 0.0)),
        seed=seed,
    )


_DOMAINS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: value == 0 or 0.01 <= value <= 100, "0 (greedy), or a number from 0.01 to 100"),
    "top_k": (
        lambda value: isinstance(value, numbers.Integral) and 0 <= int(value) <= _MAX_TOP_K,
        "a whole number: how many of the likeliest tokens to draw from, 0 for all",
    ),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and at most 1 (1 = off)"),
    "min_p": (lambda value: 0 <= value <= 1, "a number from 0 (off) to 1"),
}
