"""ThreadPool keeps its promises, and ThreadSanitizer sees no race."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
CSRC = FOLDER.parents[2] / "trtllm_lite" / "csrc"
FLAGS = ("-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread")


def test_thread_pool(tmp_path: Path) -> None:
    executable = tmp_path / "thread_pool_test"
    sources = [FOLDER / "thread_pool_test.cc", CSRC / "host" / "thread_pool.cc"]
    subprocess.run([sys.executable, CSRC / "generate_records.py", tmp_path], check=True)
    compiler = [os.environ.get("CXX", "g++"), *FLAGS, f"-I{CSRC}", f"-I{tmp_path}"]
    subprocess.run([*compiler, *sources, "-o", executable], check=True)
    run = subprocess.run([executable], capture_output=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr.decode(errors="replace")[-4000:]
