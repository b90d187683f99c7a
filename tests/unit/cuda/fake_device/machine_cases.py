"""A benchmark's report describes the GPU, with and without the driver's tool."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtllm_lite.bench import machine
from trtllm_lite.bench.machine import describe
from trtllm_lite.common.files import library_directories
from trtllm_lite.errors import DeviceError


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only directory on PATH; nothing that was found about the GPU before is remembered."""
    monkeypatch.setenv("PATH", str(tmp_path))
    machine._gpu.cache_clear()
    yield tmp_path
    machine._gpu.cache_clear()


def test_the_gpu_is_the_one_that_engines_run_on(tools: Path) -> None:
    tool = tools / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.1.2\necho 580.1.2\n")  # a line for each GPU
    tool.chmod(0o755)
    described = describe("cuda")
    assert described["machine"]["gpu"] == "Fake GPU"
    assert described["versions"]["driver"] == "580.1.2"


def test_a_folder_that_looks_like_the_package_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trtllm_lite").mkdir()
    (tmp_path / "trtllm_lite" / "__init__.py").write_text("raise SystemExit('another package')")
    monkeypatch.chdir(tmp_path)
    assert describe("cuda")["machine"]["gpu"] == "Fake GPU"


def test_without_the_tool_the_driver_tells_its_cuda_version() -> None:
    described = describe("cuda")
    assert (described["machine"]["gpu"], described["versions"]["driver"]) == ("Fake GPU", "CUDA 13.0")


def test_no_gpu_is_an_error_for_engines_that_want_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NO_GPU", "1")
    with pytest.raises(DeviceError, match=r"GPU 0: expected one of 0 that the driver shows; .* CUDA_VISIBLE"):
        describe("cuda")
    assert "gpu" not in describe("cpu")["machine"]


def test_the_fake_libraries_are_found_before_those_of_packages() -> None:
    first = Path(library_directories()[0])
    assert {path.name for path in first.iterdir()} == {"libcuda.so.1", "libcublasLt.so.13", "libnccl.so.2"}
