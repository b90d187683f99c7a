"""Reads Triton requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.api.sampling_arguments import as_tensorrt_llm
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.runtime.session.sampling_params import MAX_SEQUENCES, SamplingParams
from trtllm_lite.runtime.values import whole_number
from trtllm_lite.triton.tensors import BAD_WORD_IDS, INPUT_IDS, INPUT_LENGTHS, OPTIONS, STOP_WORD_IDS

Arrays = Mapping[str, NDArray[Any]]
"""The input tensors of a request by name; those that it left out are absent. Strings are bytes."""

# Maps names of the model tensorrt_llm to those of SamplingParams with the same meaning.
_SAMPLING = {
    "request_output_len": "max_tokens",
    "min_length": "min_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "random_seed": "seed",
    "end_id": "end_id",
    "len_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
}
_GUIDES = {"json": "json_object", "json_schema": "json", "regex": "regex", "structural_tag": "structural_tag"}
_DEFAULT_PAD_ID = 0


@dataclass(frozen=True)
class ParsedRequest:
    """A request to the model ``tensorrt_llm``.

    ``output_ids`` of sequences that are shorter than others end with ``pad_id``. They begin with the prompt if
    ``includes_prompt``.
    """

    prompt_ids: list[int]
    params: SamplingParams
    streaming: bool
    includes_prompt: bool
    pad_id: int


def parse_request(arrays: Arrays) -> ParsedRequest:
    """The request that the inputs of ``tensorrt_llm`` ask for.

    As in TensorRT-LLM the likeliest tokens are taken unless top_k or top_p is given; a top_p of 0, which its clients
    send by default, counts as not given, and so do empty words.

    Raises ArgumentError for a value out of its range.
    """
    given = {option.inner: arrays[option.inner] for option in OPTIONS if option.inner in arrays}
    values = {name: scalar(name, array) for name, array in given.items() if array.dtype != object}
    sampling = {_SAMPLING[name]: value for name, value in values.items() if name in _SAMPLING}
    if sampling.get("top_p") == 0:
        del sampling["top_p"]
    stop = texts_of("stop_words", arrays) + _sequences(STOP_WORD_IDS.name, arrays)
    bad = texts_of("bad_words", arrays) + _sequences(BAD_WORD_IDS.name, arrays)
    params = SamplingParams(
        **{"max_tokens": None, **sampling, **_several(values)},
        stop=stop or None,
        bad=bad or None,
        logprobs=0 if values.get("return_log_probs") else None,
        guided_decoding=_guide(arrays),
    )
    streaming = values.get("streaming", False)
    return ParsedRequest(
        prompt_ids=_prompt_ids(arrays),
        params=as_tensorrt_llm(params),
        streaming=streaming,
        includes_prompt=not streaming and not values.get("exclude_input_in_output", False),
        pad_id=values.get("pad_id", _DEFAULT_PAD_ID),
    )


def scalar(name: str, array: NDArray[Any]) -> Any:
    """The only element of an input. Raises ArgumentError if there are several or none."""
    if array.size != 1:
        raise ArgumentError(f"{name} has the shape {list(array.shape)}: expected one value")
    return array.item()


def texts_of(name: str, arrays: Arrays) -> list[str]:
    """The strings of an input that are not empty. Raises ArgumentError for one that is not UTF-8."""
    found = [_text(name, value) for value in arrays[name].flat] if name in arrays else []
    return [text for text in found if text]


def text_of(name: str, arrays: Arrays) -> str:
    """The only string of an input. Raises ArgumentError if it is not UTF-8, or if there are several or none."""
    return _text(name, scalar(name, arrays[name]))


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{name} is {shown(value)}: expected UTF-8, found another byte at {error.start}") from error


def _prompt_ids(arrays: Arrays) -> list[int]:
    ids = arrays[INPUT_IDS.name].reshape(-1)
    length = scalar(INPUT_LENGTHS.name, arrays[INPUT_LENGTHS.name])
    if not 0 <= length <= ids.size:
        raise ArgumentError(f"input_lengths is {length}: expected 0 to {ids.size}, the length of input_ids")
    found: list[int] = ids[:length].tolist()
    return found


def _several(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams for several sequences: a search of ``beam_width`` beams, or samples."""
    num_beams = whole_number("beam_width", values.get("beam_width", 1), 1, MAX_SEQUENCES)
    n = whole_number("num_return_sequences", values.get("num_return_sequences", num_beams), 1, MAX_SEQUENCES)
    return {"n": n, "use_beam_search": True, "best_of": num_beams} if num_beams > 1 else {"n": n}


def _sequences(name: str, arrays: Arrays) -> list[list[int]]:
    """Words as token ids; the first row has ids, the second the end of each word, then -1.

    Raises ArgumentError for ends that do not ascend, or lie outside.
    """
    if name not in arrays:
        return []
    ids, ends = arrays[name].reshape(2, -1).tolist()
    places = [0, *(end for end in ends if end >= 0)]
    if any(left >= right for left, right in pairwise(places)) or places[-1] > len(ids):
        raise ArgumentError(f"the second row of {name} is {shown(ends)}: expected ascending ends of words, then -1")
    return [ids[left:right] for left, right in pairwise(places)]


def _guide(arrays: Arrays) -> GuidedDecodingParams | None:
    kind = "".join(texts_of("guided_decoding_guide_type", arrays))
    guide = "".join(texts_of("guided_decoding_guide", arrays))
    if not kind and not guide:
        return None
    if kind not in _GUIDES:
        raise ArgumentError(f"guided_decoding_guide_type is {shown(kind)}: expected one of {', '.join(_GUIDES)}")
    form: Any = True if kind == "json" else guide
    return GuidedDecodingParams(**{_GUIDES[kind]: form})
