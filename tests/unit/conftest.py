"""Fixtures of the tests of single parts: the engine reader under sanitizers."""

from pathlib import Path

import pytest

from tests.unit.csrc.reader_harness import build_harness


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine reader under AddressSanitizer, compiled once per session."""
    return build_harness(tmp_path_factory.mktemp("harness"))
