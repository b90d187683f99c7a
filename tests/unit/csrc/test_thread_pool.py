"""ThreadPool keeps its promises, and ThreadSanitizer sees no race."""

import os
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
CSRC = FOLDER.parents[2] / "trtllm_lite" / "csrc"
FLAGS = ("-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread")


def test_thread_pool(tmp_path: Path) -> None:
    executable = tmp_path / "thread_pool_test"
    sources = [FOLDER / "thread_pool_test.cc", CSRC / "cpu" / "thread_pool.cc"]
    subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, f"-I{CSRC}", *sources, "-o", executable], check=True)
    run = subprocess.run([executable], capture_output=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr.decode(errors="replace")[-4000:]
