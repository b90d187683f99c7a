"""Fixtures of the builder's tests: kernels that are compiled once for all of them."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _common_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A kernel cache that is empty when a test run begins; all tests of the run share it, in all workers."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield
