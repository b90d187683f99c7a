"""Fixtures of the builder's tests: kernels that are compiled once for all of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtllm_lite.builder import nvrtc


@pytest.fixture(scope="module", autouse=True)
def _common_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A kernel cache that is empty when a test run begins; all tests of the run share it, in all workers."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield


@pytest.fixture
def no_machine_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Engines hold an empty cubin for each kernel, for tests that look at plans: compiling takes most of a build."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: b"\x7fELF")
