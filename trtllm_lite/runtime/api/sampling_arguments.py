"""Makes requests from prompts and the sampling arguments of ``ModelRunner.generate``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import reject_unsupported
from trtllm_lite.request_fields.draws import DRAWS, NUMBERS
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.prompts import Prompts
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.sampling_params import FIELDS, MAX_SEQUENCES, SamplingParams
from trtllm_lite.runtime.text.words import words_per_prompt
from trtllm_lite.runtime.values import check_positive, per_request, whole_number

# The fields of SamplingParams by ModelRunner's names. A value holds for all prompts; a list has a value for each.
_SAMPLING = {field.runner: name for name, field in FIELDS.items() if field.runner is not None}
_SEQUENCES = ("num_return_sequences", "num_beams", "length_penalty", "early_stopping")
ARGUMENTS = (*_SAMPLING, *_SEQUENCES, "pad_id")
# The ranges of arguments whose names differ from those in SamplingParams.
_RENAMED = {"max_new_tokens": (1, 2**24), "random_seed": (0, 2**64 - 1)}


def make_requests(
    prompts: Prompts, sampling: dict[str, Any], wanted: dict[str, Any], loras: Sequence[LoRARequest | None]
) -> list[Request]:
    """The requests of all prompts, one prompt after the other; ``loras`` has the adapter of each prompt."""
    batch_size = len(prompts.token_ids)
    common = _sequences(sampling)
    spread = {name: _per_prompt(name, value, batch_size) for name, value in sampling.items()}
    requests = []
    for row, (ids, embeds) in enumerate(zip(prompts.token_ids, prompts.embeds, strict=True)):
        own = {_SAMPLING[name]: values[row] for name, values in spread.items() if values[row] is not None}
        params = SamplingParams(**{"max_tokens": None, **own, **common, **wanted})
        requests += Request(ids, as_tensorrt_llm(params), lora_request=loras[row], prompt_embeds=embeds).sequences()
    return requests


def as_tensorrt_llm(params: SamplingParams) -> SamplingParams:
    """``params`` with TensorRT-LLM's defaults in place of the model's: greedy unless top_k or top_p is given.

    Parameters that TensorRT-LLM lacks may ask for sampling, too (``draws_in_runner``).
    """
    draws = any(number.draws_in_runner and getattr(params, name) is not None for name, number in NUMBERS.items())
    if params.use_beam_search or not draws:
        return replace(params, temperature=0.0)
    missing: dict[str, Any] = {name: NUMBERS[name].neutral for name in DRAWS if getattr(params, name) is None}
    return replace(params, **missing)


def _sequences(sampling: dict[str, Any]) -> dict[str, Any]:
    """Move the arguments about numbers of sequences out of ``sampling``; returns them as fields of SamplingParams."""
    given = {name: sampling.pop(name) for name in _SEQUENCES if name in sampling}
    num_beams = given.pop("num_beams", 1)
    check_positive("num_beams", num_beams)
    count = whole_number("num_return_sequences", given.pop("num_return_sequences", num_beams), 1, MAX_SEQUENCES)
    beams = {"use_beam_search": True, "best_of": num_beams} if num_beams > 1 else {}
    return {"n": count, **beams, **given}


def _per_prompt(name: str, value: Any, batch_size: int) -> list[Any]:
    if name in ("stop_words_list", "bad_words_list"):
        return words_per_prompt(name, value, batch_size)
    values = per_request(name, value, batch_size)
    if name in _RENAMED:  # an error of SamplingParams would name another argument
        for entry in values:
            if entry is not None:
                whole_number(name, entry, *_RENAMED[name])
    return values


def with_config(config: Any, given: Mapping[str, Any], supported: Sequence[str]) -> dict[str, Any]:
    """The sampling arguments that are not None; arguments that are not given come from ``sampling_config``."""
    fields = {} if config is None else dict(config if isinstance(config, Mapping) else vars(config))
    others = {name: value for name, value in fields.items() if name not in ARGUMENTS}
    reject_unsupported("sampling_config", others, calls.GENERATE, supported)
    merged = {**fields, **{name: value for name, value in given.items() if value is not None}}
    return {name: merged[name] for name in ARGUMENTS if merged.get(name) is not None}
