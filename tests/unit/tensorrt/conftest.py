"""Fixtures of tests that run engines of TensorRT: stand-ins for TensorRT and CUDA, and engines for them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tensorrt.fake_cuda import FakeCuda
from tests.unit.tensorrt.fake_tensorrt import FakeTensorRt, fake_image
from tests.unit.tensorrt.shapes import save_checkpoint
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.job import BuildJob
from trtllm_lite.builder.tensorrt import backend
from trtllm_lite.builder.tensorrt.compile import Compiled

GPU = {"name": "NVIDIA GeForce RTX 4090", "arch": "sm_89", "cuda_version": "13.0"}
_LIMITS: dict[str, Any] = {"max_batch_size": 3, "max_input_len": 32, "max_seq_len": 64, "max_num_tokens": 16}


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRt:
    """A machine with an RTX GPU, CUDA and TensorRT."""
    fake = FakeTensorRt(FakeCuda())
    modules = {"tensorrt_rtx": fake, "cuda.bindings.runtime": fake.cuda}
    monkeypatch.setattr("trtllm_lite.runtime.tensorrt.library.import_module", modules.__getitem__)
    monkeypatch.setattr("trtllm_lite.runtime.tensorrt.cuda.import_module", modules.__getitem__)
    monkeypatch.setattr(_core, "cuda_device", lambda: GPU)
    monkeypatch.setattr(_core, "GpuContext", lambda _: SimpleNamespace(free_memory=1 << 30))
    return fake


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Builds an engine whose network the fake runtime runs."""

    def compiled(job: BuildJob, library: Any) -> Compiled:
        del library
        return fake_image(job.graph, job.limits)

    def build(family: str = "llama", **limits: Any) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(backend, "compile_network", compiled)
            options = {"backend": "tensorrt", "target": "sm_89", **_LIMITS, **limits}
            build_engine(save_checkpoint(tmp_path, family, "float16"), tmp_path / "engine", **options)
        return tmp_path / "engine"

    return build
