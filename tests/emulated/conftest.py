"""Random inputs that are the same in every run: CI tells of a change in the code, not of luck."""

import zlib

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_inputs(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.name.encode()))
