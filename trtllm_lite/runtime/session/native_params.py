"""Fills the parameters of the C++ sampler from values that users give."""

from collections.abc import Mapping
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.core import core

# Fields that go to the C++ parameters under the same name, and what they must be.
FIELDS: Mapping[str, str] = {
    "max_tokens": "a whole number",
    "min_tokens": "a whole number",
    "temperature": "a number",
    "top_k": "a whole number",
    "top_p": "a number",
    "min_p": "a number",
    "repetition_penalty": "a number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "seed": "a whole number from -2**63 to 2**64 - 1",
    "stop_token_ids": "a list of token ids",
    "logit_bias": "a dictionary from token ids to numbers",
    "allowed_token_ids": "a list of token ids",
    "logprobs": "a whole number",
    "prompt_logprobs": "a whole number",
}


def native_params(values: Mapping[str, Any]) -> Any:
    """C++ parameters with ``values``; None leaves a parameter at its neutral value."""
    native = core().sampling.SamplingParams()
    for name, value in values.items():
        if value is not None:
            pairs = list(value.items()) if isinstance(value, Mapping) else value
            set_param(native, name, pairs, FIELDS.get(name, "lists of token ids"))
    return native


def set_param(native: Any, name: str, value: Any, expected: str) -> None:
    """Set a C++ parameter. Raises ArgumentError if its type does not take ``value``; ``violations`` checks ranges."""
    try:
        if isinstance(value, bool):
            raise TypeError
        setattr(native, name, value)
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"{name} is {shown(value)}: expected {expected}") from error
