"""A repository of a small random model, and the module that Triton's Python backend has."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import save_tiny_model
from tests.unit.triton import stand_in
from trtllm_lite import LLM
from trtllm_lite.triton.repository import write_repository

LIMITS = {"max_batch_size": 4, "max_input_len": 32, "max_seq_len": 64}


@pytest.fixture(scope="package", autouse=True)
def _backend_utils() -> Iterator[None]:
    sys.modules["triton_python_backend_utils"] = stand_in.module()
    yield
    del sys.modules["triton_python_backend_utils"]


@pytest.fixture(scope="package")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The model as LLM runs it."""
    directory = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        save_tiny_model("llama", directory / "model")
        with LLM(directory / "model", gather_context_logits=True, num_threads=1, **LIMITS) as llm:
            yield llm


@pytest.fixture(scope="package")
def repository(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's repository, which tests must not change."""
    directory = tmp_path_factory.mktemp("repository") / "repository"
    write_repository(llm.engine_dir, directory)
    return directory
