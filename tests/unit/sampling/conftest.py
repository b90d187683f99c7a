"""The sampler's part of the C++ extension."""

import pytest

from trtllm_lite._core import sampling


@pytest.fixture(scope="session")
def core():
    """The `sampling` submodule of the C++ extension."""
    return sampling


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
