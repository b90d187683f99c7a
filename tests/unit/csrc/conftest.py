"""Fixtures: the tiny engine, on disk and open."""

import pytest

from tests.unit.csrc.tiny_engine import TinyEngine, make_tiny_engine
from trtllm_lite._core import CpuExecutor, Engine


@pytest.fixture
def tiny() -> TinyEngine:
    """A valid engine whose parts may be changed."""
    return make_tiny_engine()


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> CpuExecutor:
    """An executor of the tiny engine."""
    path = tmp_path_factory.mktemp("engine") / "rank0.engine"
    path.write_bytes(make_tiny_engine().to_bytes())
    return CpuExecutor(Engine(str(path)), num_threads=2)
