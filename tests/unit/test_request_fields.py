"""The schema of request fields, and what follows from it."""

import dataclasses
import inspect
from typing import get_type_hints

import pytest

from trtllm_lite import SamplingParams
from trtllm_lite.request_fields.draws import DRAWS, NUMBERS
from trtllm_lite.request_fields.field import fields_of


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
