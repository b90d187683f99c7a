"""Makes random inputs the same in every run, so that a failure in CI is caused by a change of the code."""

import zlib

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_inputs(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.name.encode()))
