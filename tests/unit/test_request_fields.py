"""The schema of request fields, and what follows from it."""

import dataclasses
import inspect
from typing import Any, get_type_hints

import click
import msgspec
import pytest

from tests.unit.runtime.doubles import fake_manifest
from trtllm_lite import SamplingParams
from trtllm_lite.cli.generate import generate
from trtllm_lite.errors import ArgumentError
from trtllm_lite.request_fields.draws import DRAWS, NUMBERS
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.api.sampling_arguments import as_tensorrt_llm
from trtllm_lite.runtime.session.sampling_params import FIELDS
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies import decode
from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.completion import CompletionBody
from trtllm_lite.serve.bodies.messages import MessagesBody
from trtllm_lite.serve.bodies.responses import ResponsesBody


def test_every_field_of_sampling_params_is_declared() -> None:
    assert list(fields_of(SamplingParams)) == [field.name for field in dataclasses.fields(SamplingParams)]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_the_type_of_their_annotation(name: str) -> None:
    number, default = NUMBERS[name], getattr(SamplingParams, name)
    assert get_type_hints(SamplingParams)[name] in (number.python_type, number.python_type | None)
    assert default in (None, number.neutral)
    assert number.low <= number.off <= (number.off if number.high is None else number.high)


def test_the_docstring_has_all_fields() -> None:
    text = inspect.getdoc(SamplingParams) or ""
    assert "{" not in text
    for name, field in fields_of(SamplingParams).items():
        assert f"- ``{name}``: " in text
        assert field.doc.endswith(".")
    assert set(DRAWS) <= set(NUMBERS)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponsesBody])
def test_bodies_have_the_fields_that_the_schema_gives_them(body: type[msgspec.Struct]) -> None:
    wanted = {field.http.name or name for name, field in FIELDS.items() if field.http is not None}
    assert wanted <= set(body.__struct_fields__)
    assert "bad_words" in wanted
    assert "bad" not in body.__struct_fields__


def test_messages_have_those_of_their_own_api() -> None:
    assert set(MessagesBody.__struct_fields__) & set(NUMBERS) == {"temperature", "top_k", "top_p"}


def test_the_description_of_a_server_says_what_fields_do_and_their_ranges() -> None:
    _, components = msgspec.json.schema_components((ChatBody,))
    fields: dict[str, Any] = components["ChatBody"]["properties"]
    found = fields["top_p"]
    assert found["description"] == NUMBERS["top_p"].doc
    assert (found["minimum"], found["maximum"]) == (0, 1)
    assert (fields["top_k"]["minimum"], fields["temperature"]["minimum"]) == (-1, 0)


def test_numbers_out_of_range_are_refused_in_the_words_of_sampling_params() -> None:
    body = decode(b'{"messages": [], "top_p": 1.5}', ChatBody)
    with pytest.raises(ArgumentError, match="top_p must be from 0 to 1, not"):
        body.sampling_params(max_tokens=1, draws=False)


@pytest.mark.parametrize(
    ("given", "called"),
    [("repeat_penalty", "repetition_penalty"), ("n_predict", "max_tokens"), ("random_seed", "seed")],
)
def test_names_of_other_engines_tell_what_a_field_is_called(given: str, called: str) -> None:
    with pytest.raises(ApiError, match=f"{given} is 2: it is called {called} here"):
        decode(f'{{"messages": [], "{given}": 2}}'.encode(), ChatBody)
    assert getattr(SamplingParams(**{given: 2}), called) == 2


def test_the_runner_and_the_command_line_take_what_the_schema_says() -> None:
    arguments = inspect.signature(ModelRunner.generate).parameters
    assert {field.runner for field in FIELDS.values() if field.runner} <= set(arguments)
    options = {option.name: option for option in generate.params if isinstance(option, click.Option)}
    for name, field in FIELDS.items():
        if field.option is not None:
            assert options[field.runner or name].help == (field.option.help or field.doc)


@pytest.mark.parametrize(
    ("given", "temperature"), [({}, 0), ({"min_p": 0.1}, 0), ({"top_k": 3}, 1), ({"top_p": 0.5, "temperature": 2}, 2)]
)
def test_numbers_that_draw_in_model_runner(given: dict[str, float], temperature: float) -> None:
    found = as_tensorrt_llm(SamplingParams(**given))
    assert found.temperature == temperature
    drawn = {name: number.neutral for name, number in NUMBERS.items() if number.draws} | given
    if temperature > 0:
        assert {name: getattr(found, name) for name in drawn} == drawn | {"temperature": temperature}


def test_top_n_sigma_goes_from_everywhere_to_the_sampler() -> None:
    body = decode(b'{"messages": [], "top_n_sigma": 1.5}', ChatBody)
    manifest = fake_manifest()
    for params in (body.sampling_params(max_tokens=1, draws=False), as_tensorrt_llm(SamplingParams(top_n_sigma=1.5))):
        native = params.to_native(manifest, None, 1)
        assert (native.top_n_sigma, native.temperature, native.top_p) == (1.5, 1, 1)
    assert SamplingParams(top_n_sigma=-1).to_native(manifest, None, 1).top_n_sigma == 0
    with pytest.raises(ArgumentError, match="top_n_sigma must be from 0 to 100, not 101; use 0 to turn it off"):
        SamplingParams(top_n_sigma=101)
    with pytest.raises(ArgumentError, match="top_n_sigma must be off with beam search"):
        SamplingParams(top_n_sigma=1, use_beam_search=True)
