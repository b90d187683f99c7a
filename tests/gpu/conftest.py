"""All tests here need an NVIDIA GPU, torch built for CUDA, and the ``cuda`` extra; engine tests need the package."""

import importlib.util
import secrets
import subprocess
from pathlib import Path
from types import FunctionType

import pytest

from tests.real_models import find_smollm2


def _reason() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no NVIDIA GPU (or torch without CUDA)"
    return None


REASON = _reason()

# Kernels are tested from sources alone; engines need the package with its extension for tests.
HAS_PACKAGE = importlib.util.find_spec("trtllm_lite._testing") is not None
OF_ENGINES = [
    "test_byte_engines.py",
    "test_calibration.py",
    "test_deterministic.py",
    "test_draft_model.py",
    "test_eagle3.py",
    "test_encoder_engine.py",
    "test_engine.py",
    "test_few_layers.py",
    "test_grammar_drafts.py",
    "test_guided.py",
    "test_int8_engine.py",
    "test_kv_cache.py",
    "test_lora.py",
    "test_memory.py",
    "test_moving_memory.py",
    "test_remote_stages.py",
    "test_smallest_engine.py",
    "test_smollm2.py",
    "test_speculation.py",
    "test_vision.py",
    "test_tensor_parallel.py",
]
collect_ignore = [] if HAS_PACKAGE else OF_ENGINES


def pytest_report_header() -> str:
    return "" if HAS_PACKAGE else "trtllm_lite._testing is not installed: tests of whole engines are left out"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if REASON:
                item.add_marker(pytest.mark.skip(reason=REASON))


class _WithoutParameters(pytest.Item):
    """A test function that is skipped once: skipping it with each of its parameters would take seconds."""

    line: int

    def runtest(self) -> None:
        raise AssertionError("this needs a GPU")

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.name


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> pytest.Item | None:
    if not (REASON and isinstance(collector, pytest.Module) and isinstance(obj, FunctionType)):
        return None
    if not collector.funcnamefilter(name):
        return None
    item = _WithoutParameters.from_parent(collector, name=name)
    item.line = obj.__code__.co_firstlineno - 1
    return item


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file; tests that need it are skipped on a GPU machine with neither the file nor a network."""
    try:
        return find_smollm2()
    except subprocess.CalledProcessError:
        pytest.skip("SmolLM2 cannot be fetched: copy its GGUF file here and let TRTLLM_LITE_SMOLLM2 name it")


@pytest.fixture(autouse=True)
def _fresh_inputs() -> None:
    """Make new random inputs in every run; pytest shows the seed of a failed test."""
    import torch

    seed = secrets.randbits(31)
    print(f"torch.manual_seed({seed})")
    torch.manual_seed(seed)
