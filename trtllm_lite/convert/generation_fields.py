"""The sampling defaults of a model's generation_config.json, checked: a wrong type is found here, not at run time."""

from collections.abc import Callable
from typing import Any

from trtllm_lite.errors import ConvertError


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Name -> what transformers allows, and the same in words. Null means that the model has no default.
_DEFAULTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "do_sample": (lambda value: isinstance(value, bool), "true or false"),
    "temperature": (lambda value: _is_number(value) and value >= 0, "a number from 0 on"),
    "top_k": (lambda value: type(value) is int and value >= 0, "a whole number from 0 on"),
    "top_p": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "min_p": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda value: _is_number(value) and value > 0, "a number above 0"),
}


def sampling_defaults(generation: dict[str, Any], description: str) -> dict[str, Any]:
    """The defaults of ``generation`` that runtimes apply. ConvertError, naming ``description``, lists all bad ones."""
    found = {name: generation[name] for name in _DEFAULTS if generation.get(name) is not None}
    problems = [
        f"{name}: expected {_DEFAULTS[name][1]}, found {value!r}"
        for name, value in found.items()
        if not _DEFAULTS[name][0](value)
    ]
    if problems:
        raise ConvertError(
            f"the generation_config.json of {description} is not valid: {'; '.join(problems)}: "
            "correct it, or delete the file to go without defaults"
        )
    return found
