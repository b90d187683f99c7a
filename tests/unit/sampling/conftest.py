"""The sampler's part of the C++ extension."""

from types import SimpleNamespace

import pytest

from trtllm_lite import _testing
from trtllm_lite._core import sampling

BY_HAND = ("Sampler", "SampledToken", "BeamSearch", "philox4x32_10", "token_uniform", "processed")


@pytest.fixture(scope="session")
def core():
    """The extension's interface for sampling, and the parts of the sampler that tests call directly."""

    def truncated(logits, **fields):
        return _testing.truncated(logits, params_of(fields))

    by_hand = {name: vars(_testing)[name] for name in BY_HAND}
    return SimpleNamespace(**vars(sampling), **by_hand, truncated=truncated)


@pytest.fixture(scope="session")
def make_params():
    """SamplingParams from keywords; an unknown one is an AttributeError."""
    return lambda **fields: params_of(fields)


def params_of(fields):
    params = sampling.SamplingParams()
    for name, value in fields.items():
        if not hasattr(params, name):
            raise AttributeError(name)
        setattr(params, name, value)
    return params
