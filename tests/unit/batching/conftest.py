"""Where the C++ tests are compiled."""

from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import BATCHING, CSRC, HERE, cached_folder


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> Path:
    """The directory of what is compiled of csrc/batching and its tests."""
    headers = [*CSRC.glob("*.h"), *(CSRC / "batching").glob("*.h"), *HERE.glob("*.h")]
    return cached_folder(pytestconfig, "batching", [*headers, *BATCHING, *HERE.glob("*_test.cc")])
