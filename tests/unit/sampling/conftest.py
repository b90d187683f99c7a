"""The sampler's part of the C++ extension."""

from types import SimpleNamespace

import pytest

from trtllm_lite import _testing
from trtllm_lite._core import sampling

BY_HAND = ("Sampler", "SampledToken", "BeamSearch", "philox4x32_10", "token_uniform", "processed", "truncated")


@pytest.fixture(scope="session")
def core():
    """What is said of sampling to the C++ extension, and what of it tests drive by hand."""
    return SimpleNamespace(**vars(sampling), **{name: vars(_testing)[name] for name in BY_HAND})


@pytest.fixture(scope="session")
def make_params(core):
    """SamplingParams from keywords; an unknown one is an AttributeError."""

    def make(**fields):
        params = core.SamplingParams()
        for name, value in fields.items():
            if not hasattr(params, name):
                raise AttributeError(name)
            setattr(params, name, value)
        return params

    return make
