"""Fixtures of the tests of single parts: C++ under sanitizers, compiled once."""

from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import CSRC, SAMPLING, cached_folder
from tests.unit.csrc.reader_harness import build_harness


@pytest.fixture(scope="session")
def harness(pytestconfig: pytest.Config) -> Path:
    """The engine reader under AddressSanitizer."""
    return build_harness(pytestconfig)


@pytest.fixture(scope="session")
def sampling(pytestconfig: pytest.Config) -> Path:
    """The directory of what is compiled of csrc/sampling and its tests."""
    tests = (Path(__file__).parent / "sampling").glob("*.cc")
    return cached_folder(pytestconfig, "sampling", [*CSRC.rglob("*.h"), *SAMPLING, *tests])
