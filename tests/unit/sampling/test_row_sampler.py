"""row_sampler_memory.cc: a request that asks for more memory than there is fails alone."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "trtllm_lite" / "csrc"


def test_too_little_memory_fails_one_request(tmp_path: Path) -> None:
    program = tmp_path / "row_sampler_memory"
    sources = [HERE / "row_sampler_memory.cc", *sorted((CSRC / "sampling").glob("*.cc"))]
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-pthread", "-I", CSRC]
    subprocess.run([*compiler, *sources, "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
