"""Fixtures of the tests of single parts: C++ under sanitizers, compiled once."""

from pathlib import Path

import pytest

from tests.unit.csrc.reader_harness import PROGRAM
from tests.unit.sanitized import Sanitized


@pytest.fixture(scope="session")
def sanitized(pytestconfig: pytest.Config) -> Sanitized:
    """Compiles and runs C++ under the sanitizers."""
    assert pytestconfig.cache is not None, "run pytest with its cache provider"
    return Sanitized(pytestconfig.cache.mkdir("sanitized"))


@pytest.fixture(scope="session")
def harness(sanitized: Sanitized) -> Path:
    """The engine reader under AddressSanitizer."""
    return sanitized.program("asan", PROGRAM.stem, [PROGRAM], ["engine", "process"])
