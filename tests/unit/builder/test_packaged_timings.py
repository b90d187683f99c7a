"""The package's timing caches are used for the architecture and version of cuBLASLt that were measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.cuda_engines import LIMITS, cuda_shape
from tests.unit.builder.test_timing_cache import CACHE
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.cuda import backend
from trtllm_lite.builder.cuda.products.packaged import DIRECTORY, packaged_timings
from trtllm_lite.builder.cuda.products.timing_cache import load_timing_cache
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.errors import DeviceError

OTHER = replace(CACHE, device="Another GPU")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "caches").mkdir()
    for name, cache in {"a": OTHER, "b": CACHE, "c": replace(CACHE, device="Old", arch="sm_80")}.items():
        cache.save(tmp_path / "caches" / f"{name}.json")
    return tmp_path / "caches"


def _machine(monkeypatch: pytest.MonkeyPatch, *names: str, version: int | None = None) -> None:
    def version_of(_: list[str]) -> int:
        if version is None:
            raise DeviceError("there is none")
        return version

    monkeypatch.setattr(_core, "cuda_devices", lambda: [{"name": name} for name in names])
    monkeypatch.setattr(_core, "cublaslt_version", version_of)


def test_every_cache_of_the_package_can_be_read() -> None:
    caches = [load_timing_cache(path) for path in DIRECTORY.iterdir()]
    assert "NVIDIA H200" in {cache.device for cache in caches}


def test_the_cache_of_the_gpu_here_is_taken(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = parse_targets(["sm_90"])
    _machine(monkeypatch, "Test GPU", version=CACHE.cublaslt_version)
    assert packaged_timings(devices, directory) == load_timing_cache(directory / "b.json")
    _machine(monkeypatch, "A third GPU", version=CACHE.cublaslt_version)
    assert packaged_timings(devices, directory) == load_timing_cache(directory / "a.json")


def test_other_architectures_have_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch)
    assert packaged_timings(parse_targets(["sm_120"]), directory) is None
    found = packaged_timings(parse_targets(["sm_120", "sm_80"]), directory)
    assert found is not None
    assert found.device == "Old"


@pytest.mark.parametrize("version", [None, CACHE.cublaslt_version + 1])
def test_algorithms_are_of_one_version(directory: Path, monkeypatch: pytest.MonkeyPatch, version: int | None) -> None:
    _machine(monkeypatch, version=version)
    found = packaged_timings(parse_targets(["sm_90"]), directory)
    assert found is not None
    assert (found.products, found.arch) == ((), CACHE.arch)


@pytest.mark.parametrize("version", [None, CACHE.cublaslt_version])
def test_builds_take_them_by_themselves(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    """An engine has cuBLASLt's algorithms if the build has the measured version, and else runs with any version."""
    _machine(monkeypatch, version=version)
    monkeypatch.setattr(backend, "packaged_timings", lambda devices: packaged_timings(devices, directory))
    checkpoint = save_checkpoint(tmp_path / "checkpoint", cuda_shape())
    manifest = build_engine(checkpoint, tmp_path / "engine", target="sm_90", **LIMITS)
    measured = [tactic for tactic in manifest.tactics if "measured on Another GPU" in tactic.reason]
    assert bool(measured) == (version is not None)
