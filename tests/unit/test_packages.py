"""The packages that provenance names: those that took part, and above all the compilers."""

from importlib.metadata import version
from typing import Any

import pytest

from trtllm_lite.builder import nvrtc
from trtllm_lite.builder.tensorrt import library
from trtllm_lite.cli import packages
from trtllm_lite.cli.packages import packages_of
from trtllm_lite.engine.sbom import Package
from trtllm_lite.errors import BuildError


def _compilers(target: str) -> list[Package]:
    """The packages that take part in builds for this target, but not in builds for CPUs."""
    others = list(packages_of([], "cpu"))
    return [package for package in packages_of([], target) if package not in others]


def test_the_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = _compilers("cuda")
    assert (found.name, found.version) == ("nvidia-cuda-nvrtc", version("nvidia-cuda-nvrtc"))
    monkeypatch.setattr(nvrtc, "compiler_version", lambda: "nvrtc 13.1")  # as a CUDA toolkit has it
    assert _compilers("cuda") == [Package("nvrtc", "13.1", None, on_pypi=False)]


@pytest.mark.parametrize("package", ["tensorrt_rtx", "tensorrt"])
def test_the_tensorrt_that_compiles_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_library", lambda: library.Library(package, "9.8", None))
    (found,) = _compilers("tensorrt")
    assert (found.name, found.version) == (package, "9.8")


def test_a_package_without_a_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata: Any = packages._metadata
    monkeypatch.setattr(packages, "_metadata", lambda name: None if name == "gguf" else metadata(name))
    assert list(packages_of(["model.safetensors"], "cpu"))
    with pytest.raises(BuildError, match=r"--provenance names the version of gguf, and pip knows none: pip install"):
        list(packages_of(["model.gguf"], "cpu"))
