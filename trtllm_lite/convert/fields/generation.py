"""Checks a model's generation defaults, so that convert refuses values that runtimes would refuse or ignore."""

from collections.abc import Mapping, Sequence
from typing import Any

from trtllm_lite import _core
from trtllm_lite.convert.metadata.generation_config import GENERATION_CONFIG
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.request_fields.draws import NUMBERS

_NUMBERS = tuple(name for name, number in NUMBERS.items() if number.in_checkpoints)


def generation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The generation defaults in a ``config`` of a model without generation_config.json, as transformers reads them."""
    return {key: value for key, value in config.items() if key in GENERATION_CONFIG.keys}


def read_token_ids(values: Mapping[str, Any], key: str, vocab_size: int) -> list[int]:
    """The ids under ``key``: one, a list of ids, or null for none.

    Ids outside the vocabulary, which no model can produce, are left out; in some files -1 stands for no token. Raises
    ConvertError for anything else, such as a token's text.
    """
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(number) is int for number in ids):
        raise ConvertError(
            f"{key} is {shown(value)}: expected a token's number or a list of them: correct generation_config.json or "
            f"config.json, or pass --ignore_config_keys {key} (ignore_config_keys of LLM) to go without it"
        )
    return [number for number in ids if 0 <= number < vocab_size]


def sampling_defaults(
    generation: dict[str, Any], eos_ids: Sequence[int], vocab_size: int, description: str
) -> dict[str, Any]:
    """The defaults of ``generation`` that runtimes apply; null means that the model has none.

    The runtime's own sampler checks them and ``eos_ids``. A ConvertError, naming ``description``, lists all values it
    refuses and all keys that ``GENERATION_CONFIG`` does not know.
    """
    names = ("do_sample", *_NUMBERS)
    found = {name: generation[name] for name in names if generation.get(name) is not None}
    problems = GENERATION_CONFIG.problems(generation)
    if not isinstance(found.get("do_sample", False), bool):
        problems.append(f"do_sample: expected true or false, found {shown(found['do_sample'])}")
    native = _core.sampling.SamplingParams()
    native.end_ids = list(eos_ids)
    for name in _NUMBERS:
        if name in found:
            try:
                _set(native, name, found[name])
            except (TypeError, OverflowError):
                problems.append(f"{name}: expected a number that the sampler can hold, found {shown(found[name])}")
    problems += native.violations(vocab_size)
    if problems:
        raise ConvertError(
            f"the generation defaults of {description} cannot be used: {'; '.join(problems)}: correct "
            "generation_config.json, or pass --ignore_config_keys NAME,… to go without some"
        )
    return found


def _set(native: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        raise TypeError(name)
    setattr(native, name, value)
