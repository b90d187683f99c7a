"""The target auto means the GPUs that libcuda reports, or else the CPU; finding out runs nothing on the GPUs."""

import ctypes
import gc
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.cuda_engines import cuda_shape
from trtllm_lite import _core
from trtllm_lite.builder import local_target as module
from trtllm_lite.builder.local_target import LocalTarget, local_target
from trtllm_lite.cli import cli
from trtllm_lite.errors import BuildError, DeviceError

MEMORY = 1 << 30  # bytes of the fake device


def test_the_gpus_are_the_target(fake_driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # frees what earlier tests have allocated
    before = fake_driver.fake_allocated()
    assert local_target() == LocalTarget(("sm_90",), "Fake GPU (sm_90)", MEMORY)
    monkeypatch.setenv("FAKE_GPUS", "2")
    assert str(local_target()) == "the target is sm_90 (2 x Fake GPU (sm_90))"
    assert fake_driver.fake_allocated() == before


def test_the_gpus_are_listed() -> None:
    assert _core.cuda_devices() == [{"name": "Fake GPU", "arch": "sm_90", "memory": MEMORY}]


def test_without_a_gpu_the_target_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NO_GPU", "1")
    assert local_target() == LocalTarget(("cpu",), "no NVIDIA GPU was found")


def test_a_gpu_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CAPABILITY", "75")
    assert str(local_target()) == "the target is cpu (Fake GPU (sm_75), for which there are no kernels)"


@pytest.mark.parametrize("has_cublas", [True, False])
def test_a_gpu_without_the_packages_is_an_error(monkeypatch: pytest.MonkeyPatch, has_cublas: bool) -> None:
    def refuse(_: list[str]) -> int:
        raise DeviceError("there is none")

    if has_cublas:
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    else:
        monkeypatch.setattr(_core, "cublaslt_version", refuse)
    with pytest.raises(
        BuildError, match=r"has Fake GPU \(sm_90\), but not .*pip install 'trtllm_lite\[cuda\]', or pass --t"
    ):
        local_target()


def test_plans_are_for_the_gpu_and_fit_into_it(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", cuda_shape())
    planned = CliRunner().invoke(cli, ["plan", "--checkpoint_dir", str(checkpoint)])
    assert planned.exit_code == 0, planned.output
    assert planned.stderr == "the target is sm_90 (Fake GPU (sm_90))\n"
    assert "copied to the GPU" in planned.stdout
    assert "at most: 256 sequences of 64 tokens" in planned.stdout
    assert "1.0 GiB a device: --tp_size 1 is the least; 90% of it hold a KV cache of 16,384 tokens" in planned.stdout
