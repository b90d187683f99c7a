"""Triton's requests, whose inputs have the names of its TensorRT-LLM backend."""

from typing import Any

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
from trtllm_lite.triton.requests import ParsedRequest, parse_request
from trtllm_lite.triton.tensors import OPTIONS, Tensor

DTYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_, "STRING": np.object_}
INPUTS: dict[str, Tensor] = {option.inner: option.inner_tensor for option in OPTIONS}


def arrays(**values: Any) -> dict[str, np.ndarray]:
    """Input tensors as clients send them: the first extent is 1."""
    ids = {"input_ids": np.array([[5, 6, 7]], np.int32), "input_lengths": np.array([[3]], np.int32)}
    given = {
        name: np.array([value] if isinstance(value, list) else [[value]], DTYPES[INPUTS[name].dtype])
        for name, value in values.items()
    }
    return {**ids, **given}


def parse(**values: Any) -> ParsedRequest:
    return parse_request(arrays(**values))


def test_without_options_the_likeliest_tokens_come_as_long_as_they_fit() -> None:
    request = parse()
    assert request.prompt_ids == [5, 6, 7]
    assert (request.params.temperature, request.params.max_tokens, request.params.logprobs) == (0.0, None, None)
    assert (request.streaming, request.includes_prompt, request.pad_id) == (False, True, 0)


def test_options_become_sampling_params() -> None:
    params = parse(
        request_output_len=9,
        min_length=2,
        runtime_top_k=5,
        runtime_top_p=0.5,
        temperature=0.25,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        random_seed=2**64 - 1,
        end_id=3,
        return_log_probs=True,
        return_context_logits=True,
        return_generation_logits=True,
        num_return_sequences=2,
    ).params
    assert (params.max_tokens, params.min_tokens, params.top_k, params.top_p) == (9, 2, 5, 0.5)
    assert (params.temperature, params.repetition_penalty, params.seed, params.end_id) == (0.25, 1.5, 2**64 - 1, 3)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert (params.logprobs, params.n, params.use_beam_search) == (0, 2, False)
    assert params.return_context_logits
    assert params.return_generation_logits


def test_a_top_p_of_0_counts_as_not_given() -> None:
    params = parse(runtime_top_k=1, runtime_top_p=0.0).params
    assert (params.top_k, params.top_p, params.temperature) == (1, 1.0, 1.0)
    assert parse(runtime_top_p=0.0).params.temperature == 0


def test_beams_are_a_search() -> None:
    params = parse(beam_width=3, len_penalty=2.0, early_stopping=True).params
    assert (params.use_beam_search, params.best_of, params.n) == (True, 3, 3)
    assert (params.length_penalty, params.early_stopping) == (2.0, True)
    assert not parse(beam_width=1).params.use_beam_search


def test_streams_and_excluded_prompts() -> None:
    assert parse(streaming=True).streaming
    assert not parse(streaming=True).includes_prompt
    assert not parse(exclude_input_in_output=True).includes_prompt
    assert parse(pad_id=9).pad_id == 9


def test_words_are_texts_or_token_ids_and_empty_ones_are_none() -> None:
    given = arrays(stop_words=["§".encode(), b"", b"END"], bad_words=b"")
    given["stop_words_list"] = np.array([[[4, 8, 15, 0], [1, 3, -1, -1]]], np.int32)
    params = parse_request(given).params
    assert params.stop == ["§", "END", [4], [8, 15]]
    assert params.bad is None


def test_guides() -> None:
    schema = '{"type": "integer"}'
    form = parse(guided_decoding_guide_type=b"json_schema", guided_decoding_guide=schema.encode())
    assert form.params.guided_decoding == GuidedDecodingParams(json=schema)
    form = parse(guided_decoding_guide_type=b"json")
    assert form.params.guided_decoding == GuidedDecodingParams(json_object=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_words": [b"\xff"]}, r"stop_words is b'\\xff': expected UTF-8, found another byte at 0"),
        ({"temperature": [0.5, 0.5]}, r"temperature has the shape \[1, 2\]: expected one value"),
        ({"guided_decoding_guide": b"x"}, "guided_decoding_guide_type is '': expected one of json, json_schema"),
        ({"beam_width": 1000}, "beam_width is 1000: expected a whole number from 1 to 128"),
        ({"temperature": float("nan")}, "temperature"),
        ({"request_output_len": -1}, "max_tokens"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0"),
    ],
)
def test_values_out_of_range_are_errors(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse(**values)


@pytest.mark.parametrize("ends", [[3, 1], [0, -1], [5, -1], [1, 1]])
def test_places_of_words_must_rise(ends: list[int]) -> None:
    given = arrays()
    given["bad_words_list"] = np.array([[[4, 8], ends]], np.int32)
    with pytest.raises(ArgumentError, match=r"the second row of bad_words_list is .* expected ascending ends of words"):
        parse_request(given)


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_beyond_the_ids_are_errors(length: int) -> None:
    given = arrays()
    given["input_lengths"] = np.array([[length]], np.int32)
    with pytest.raises(ArgumentError, match="input_lengths is"):
        parse_request(given)
