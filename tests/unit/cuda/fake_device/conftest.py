"""Fixtures for a process whose libcuda is the fake one; ../test_on_a_fake_device.py starts the process."""

import ctypes
from pathlib import Path

import pytest

from tests.unit.cuda.toy_engine import make_toy_engine, to_bytes
from trtllm_lite._core import CudaExecutor, Engine


@pytest.fixture(scope="session")
def fake_driver() -> ctypes.CDLL:
    """The fake library, which this process finds as libcuda.so.1."""
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_count.restype = library.fake_allocated.restype = ctypes.c_int64
    library.fake_num_waiting.restype = ctypes.c_int64
    library.fake_count.argtypes = [ctypes.c_char_p]
    return library


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """The toy engine."""
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine()))
    return Engine(str(path))


@pytest.fixture
def executor(engine: Engine) -> CudaExecutor:
    """An executor of the toy engine on the fake device."""
    return CudaExecutor(engine)
