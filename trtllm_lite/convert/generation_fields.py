"""Checks the sampling defaults of a model's generation_config.json, so that convert refuses what runtimes would."""

from collections.abc import Sequence
from typing import Any

from trtllm_lite import _core
from trtllm_lite.errors import ConvertError, shown

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def sampling_defaults(
    generation: dict[str, Any], eos_ids: Sequence[int], vocab_size: int, description: str
) -> dict[str, Any]:
    """The defaults of ``generation`` that runtimes apply; null means that the model has none.

    The runtime's own sampler judges them and ``eos_ids``. ConvertError, naming ``description``, lists all it refuses.
    """
    names = ("do_sample", *_NUMBERS)
    found = {name: generation[name] for name in names if generation.get(name) is not None}
    problems = []
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
