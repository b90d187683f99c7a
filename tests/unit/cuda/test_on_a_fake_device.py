"""Runs fake_device/*_cases.py in processes of their own, where the fake libraries here take the place of CUDA's.

Separate processes are needed because other libraries, such as NVRTC's bindings, could find the fake driver, too.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept import kept
from tests.unit.sanitized import compiler
from trtllm_lite.plugins.generated import HEADERS, write_headers

HERE = Path(__file__).parent
PLUGINS = HERE.parents[2] / "plugins"
FLAGS = ("-O1", "-fPIC", "-shared", "-Werror", f"-I{PLUGINS}")
_FILES = {path.stem.removesuffix("_cases"): path for path in sorted((HERE / "fake_device").glob("*_cases.py"))}
# One process runs all cases, because its start takes longer than the cases of most files. These files run apart:
# "stage" leaves a GPU that has stalled for good, and "ray" needs Ray, which may be missing.
_APART = {name: [_FILES.pop(name)] for name in ("stage", "ray")}
CASES = {"together": list(_FILES.values()), **_APART}
if importlib.util.find_spec("ray") is None:
    del CASES["ray"]
PLACE = Path("nvidia", "fake", "lib")
# Each library calls those before it.
LIBRARIES = {
    "fake_libcuda.cc": "libcuda.so.1",
    "fake_libcublaslt.cc": "libcublasLt.so.13",
    "fake_libnccl.cc": "libnccl.so.2",
}


@pytest.fixture(scope="module")
def driver_directory(pytestconfig: pytest.Config) -> Path:
    """Holds the fake libraries, as packages of NVIDIA's would."""
    sources = [HERE / source for source in LIBRARIES]
    headers = sorted([*HERE.glob("*.h"), *PLUGINS.rglob("*.cuh")])
    contents = [path.read_bytes() for path in [*sources, *headers, Path(__file__)]]
    contents += [text().encode() for text in HEADERS.values()]

    def make(folder: Path) -> None:
        directory = folder / PLACE
        directory.mkdir(parents=True)
        write_headers(folder / "headers")
        built: list[Path] = []
        for source, library in zip(sources, LIBRARIES.values(), strict=True):
            flags = [*FLAGS, f"-I{folder / 'headers'}", f"-Wl,-soname,{library}"]
            command = [*compiler(flags), source, *built, "-o", directory / library]
            subprocess.run(command, check=True)
            built.append(directory / library)

    assert pytestconfig.cache is not None, "run pytest with its cache provider"
    return kept(pytestconfig.cache.mkdir("fake-device"), contents, make) / PLACE


@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_cuda_executor(driver_directory: Path, cases: list[Path]) -> None:
    # Packages are looked through in the order of sys.path: the fake NCCL comes before one that torch brought.
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(driver_directory),
        "PYTHONPATH": str(driver_directory.parents[2]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the cases need none, and importing them takes half of the start
    }
    command = [sys.executable, "-m", "pytest", "-q", *map(str, cases)]
    finished = subprocess.run(
        command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "[100%]" in finished.stdout
