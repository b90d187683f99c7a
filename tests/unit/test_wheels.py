"""Wheels are checked against their limits, and CI's lock file against the dependencies that it pins."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
GOOD = "trtllm_lite-0.1.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
FILES = {
    "trtllm_lite/_core.abi3.so": b"",
    "trtllm_lite/include/cpu/plugin_library.h": b"",
    "trtllm_lite/timing_caches/nvidia-h200.json": b"{}",
    "trtllm_lite-0.1.0.dist-info/METADATA": b"Name: trtllm_lite\n",
}


def _check(path: Path, files: dict[str, bytes]) -> subprocess.CompletedProcess[str]:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    command = [sys.executable, str(ROOT / "scripts" / "check_wheel.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [GOOD, "trtllm_lite-0.1.0-cp311-cp311-manylinux_2_28_aarch64.whl"])
def test_a_wheel_within_its_limits_passes(name: str, tmp_path: Path) -> None:
    assert _check(tmp_path / name, FILES).returncode == 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("trtllm_lite-0.1.0-cp312-cp312-manylinux_2_28_x86_64.whl", {}, "its tags"),
        ("trtllm_lite-0.1.0-cp312-abi3-linux_x86_64.whl", {}, "its tags"),
        ("trtllm_lite-0.1.0-cp312-abi3-manylinux_2_34_x86_64.whl", {}, "its tags"),
        (GOOD, {"trtllm_lite-0.1.0.dist-info/METADATA": b"x" * 20_001}, "20,001 bytes of metadata"),
        (GOOD, {"trtllm_lite/more.bin": b"x" * 4_000_001}, "expected at most 4,000,000"),
        (GOOD, {"trtllm_lite/_core.abi3.so": None}, "lacks the extension trtllm_lite._core"),
        (GOOD, {"trtllm_lite/include/cpu/plugin_library.h": None}, "lacks the headers for kernels of other packages"),
        (GOOD, {"trtllm_lite/timing_caches/nvidia-h200.json": None}, "lacks trtllm_lite/timing_caches/nvidia-h200"),
        (GOOD, {"trtllm_lite/_testing.abi3.so": b""}, "_testing.abi3.so, which no user needs"),
        (GOOD, {"trtllm_lite/csrc/errors.h": b""}, "errors.h, which no user needs"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_said(
    name: str, changes: dict[str, bytes | None], message: str, tmp_path: Path
) -> None:
    files = {file: data for file, data in {**FILES, **changes}.items() if data is not None}
    done = _check(tmp_path / name, files)
    assert done.returncode == 1
    assert message in done.stdout


def test_the_lock_file_pins_what_the_test_extra_wants() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements" / "test.txt").read_text(), re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in lines}
    wanted = [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["test"]]]
    for requirement in wanted:
        if requirement.name in ("torch", "trtllm_lite") or (requirement.marker and not requirement.marker.evaluate()):
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
